//! Runs to test with, played at random from a seed.

use crate::runs::{Branches, Meta, Run, legal, slide};

/// Numbers that look random and are the same every time.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number below `most`.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// A game of at most so many steps, with branches for some of them when the seed is even.
pub(crate) fn play(seed: u64, most: usize) -> Run {
    let mut numbers = Numbers(seed.wrapping_add(77));
    let mut board = add_tile(add_tile(0, &mut numbers), &mut numbers);
    let (mut boards, mut moves) = (vec![board], Vec::new());
    let mut branches = Branches::default();
    while moves.len() < most && legal(board) != 0 {
        let mv = (0..).map(|_| numbers.below(4) as u8).find(|&mv| legal(board) >> mv & 1 == 1);
        let given =
            if seed.is_multiple_of(2) && numbers.below(4) > 0 { 16 | legal(board) } else { 0 };
        branches.given.push(given);
        branches.values.push(std::array::from_fn(|mv| match given >> mv & 1 {
            1 => numbers.below(1000) as f32 / 1000.0,
            _ => f32::NAN,
        }));
        let mv = mv.unwrap();
        moves.push(mv);
        board = add_tile(slide(board, mv).unwrap().0, &mut numbers);
        boards.push(board);
    }
    let tile = |exponent: u64| if exponent == 0 { 0 } else { 1 << exponent };
    let meta = Meta {
        steps: moves.len() as u32,
        start_unix_s: 1_700_000_000 + seed,
        elapsed_s: seed as f32 / 8.0,
        max_score: seed * 100,
        highest_tile: (0..16).map(|cell| tile(board >> (4 * cell) & 15)).max().unwrap(),
        engine: [None, Some("ntuple"), Some("greedy")][seed as usize % 3].map(str::to_owned),
    };
    let branches = branches.given.iter().any(|&given| given != 0).then_some(branches);
    Run { meta, boards, moves, branches }
}

fn add_tile(board: u64, numbers: &mut Numbers) -> u64 {
    let empty: Vec<u32> = (0..16).filter(|cell| board >> (4 * cell) & 15 == 0).collect();
    let cell = empty[numbers.below(empty.len() as u64) as usize];
    board | (1 + numbers.below(10) / 9) << (4 * cell)
}
