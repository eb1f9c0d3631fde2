//! Blocks and partitions compared with lists.

use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::permute::mix;

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % limit
    }
}

fn blocks(sizes: &[u64]) -> Option<Arc<Blocks>> {
    let ends = sizes.iter().scan(0, |end, size| {
        *end += size;
        Some(*end)
    });
    Some(Arc::new(Blocks::new(std::iter::once(0).chain(ends).collect()).unwrap()))
}

/// A plan with random blocks, partitions and steps.
fn any_plan(numbers: &mut Numbers, tail: Tail) -> Plan {
    let sizes: Vec<u64> = (0..1 + numbers.below(12)).map(|_| numbers.below(9)).collect();
    let length = sizes.iter().sum::<u64>().max(1);
    let is_given = sizes.iter().sum::<u64>() > 0 && numbers.below(4) > 0;
    let world_size = 1 + numbers.below(4).min(length - 1);
    let batch_size = 1 + numbers.below(6);
    let rows_per_step = 1 + numbers.below(20);
    Plan {
        length,
        batch_size,
        mode: Mode::Block,
        tail,
        seed: numbers.below(1 << 40),
        window: Some(1 + numbers.below(length + 3)),
        stride: (!is_given).then(|| 1 + numbers.below(5)),
        rank: 0,
        world_size,
        epochs: None,
        blocks: blocks(&sizes).filter(|_| is_given),
        partitions: 1 + numbers.below(rows_per_step + 4),
        rows_per_step: Some(rows_per_step),
    }
}

/// The rows at these positions of the global order.
fn order(plan: &Plan, positions: std::ops::Range<u64>) -> Vec<i64> {
    let one = Plan { batch_size: 1, world_size: 1, rank: 0, ..plan.clone() };
    let mut sampler = Sampler::new(Plan {
        tail: if plan.tail == Tail::Wrap { plan.tail } else { Tail::Keep },
        ..one
    })
    .unwrap();
    sampler.seek(positions.start).unwrap();
    let mut rows = Vec::new();
    for _ in positions {
        let step = sampler.step().unwrap();
        sampler.plan.rows(&step, 0..1, &mut rows);
    }
    rows
}

/// The partitions of an epoch as lists of positions, dealt step by step.
fn dealt(plan: &Plan, epoch: u64) -> Vec<Vec<u64>> {
    let (length, rows, count) = (plan.length, plan.rows_per_step(), plan.partitions);
    let is_wrapped = plan.tail == Tail::Wrap;
    let first = if is_wrapped { epoch * length % rows } else { 0 };
    let mut partitions = vec![Vec::new(); count as usize];
    for position in 0..length {
        let (step, in_step) = ((first + position) / rows, (first + position) % rows);
        let len = if is_wrapped { rows } else { rows.min(length - step * rows) };
        let found =
            (0..count).filter(|p| p * len / count <= in_step && in_step < (p + 1) * len / count);
        let found: Vec<u64> = found.collect();
        assert_eq!(found.len(), 1);
        partitions[found[0] as usize].push(position);
    }
    partitions
}

#[test]
fn partitions_are_dealt_as_documented() {
    let mut numbers = Numbers(1);
    for round in 0..3000 {
        let tail = [Tail::Keep, Tail::Wrap, Tail::Pad][round % 3];
        let plan = any_plan(&mut numbers, tail);
        let epoch = numbers.below(4);
        let start = epoch * plan.length;
        let found = order(&plan, start..start + plan.length);
        // Without windows and partitions: the shuffled blocks.
        let sequence = Plan { window: Some(1), partitions: 1, ..plan.clone() };
        let sequence = order(&sequence, start..start + plan.length);
        let mut place = 0;
        for positions in dealt(&plan, epoch) {
            for window in positions.chunks(plan.window_len() as usize) {
                let mut got: Vec<i64> = window.iter().map(|&p| found[p as usize]).collect();
                let mut expected = sequence[place..place + window.len()].to_vec();
                place += window.len();
                got.sort_unstable();
                expected.sort_unstable();
                assert_eq!(got, expected, "{plan:?}");
            }
        }
        assert_eq!(place as u64, plan.length);
    }
}

#[test]
fn given_blocks_are_visited_whole_and_in_another_order_each_epoch() {
    let sizes = [3, 0, 5, 1, 7, 4, 0, 6];
    let plan = Plan {
        length: 26,
        window: Some(1),
        stride: None,
        blocks: blocks(&sizes),
        partitions: 1,
        rows_per_step: None,
        ..any_plan(&mut Numbers(2), Tail::Keep)
    };
    let bounds = [0, 3, 3, 8, 9, 16, 20, 20, 26];
    let mut orders = HashSet::new();
    for epoch in 0..8 {
        let rows = order(&plan, epoch * 26..(epoch + 1) * 26);
        let mut firsts = Vec::new();
        let mut at = 0;
        while at < rows.len() {
            let block = bounds.iter().rposition(|&first| first <= rows[at]).unwrap();
            let size = sizes[block] as usize;
            let expected: Vec<i64> = (bounds[block]..bounds[block] + size as i64).collect();
            assert_eq!(rows[at..at + size], expected);
            firsts.push(block);
            at += size;
        }
        orders.insert(firsts);
    }
    assert!(orders.len() > 6, "{orders:?}");
}

#[test]
fn one_partition_has_the_same_order_at_any_step_and_tail() {
    let mut numbers = Numbers(3);
    for _ in 0..300 {
        let plan = Plan { partitions: 1, ..any_plan(&mut numbers, Tail::Keep) };
        let other =
            Plan { tail: Tail::Wrap, rows_per_step: Some(1 + numbers.below(50)), ..plan.clone() };
        assert_eq!(order(&plan, 0..2 * plan.length), order(&other, 0..2 * plan.length));
    }
}

#[test]
fn ranks_take_consecutive_shares_of_the_order() {
    let mut numbers = Numbers(4);
    for round in 0..1000 {
        let tail = [Tail::Keep, Tail::Wrap, Tail::Drop][round % 3];
        let mut plan = any_plan(&mut numbers, tail);
        if tail == Tail::Drop && plan.span() > plan.length {
            plan.batch_size = 1;
        }
        let mut ranks: Vec<Sampler> = (0..plan.world_size)
            .map(|rank| Sampler::new(Plan { rank, ..plan.clone() }).unwrap())
            .collect();
        for _ in 0..6 {
            let start = ranks[0].without_tail(ranks[0].cursor()).position;
            let mut rows = Vec::new();
            for rank in &mut ranks {
                let step = rank.step().unwrap();
                rank.plan.rows(&step, 0..step.samples / 2, &mut rows);
                rank.plan.rows(&step, step.samples / 2..step.samples, &mut rows);
            }
            assert_eq!(rows, order(&plan, start..start + rows.len() as u64));
        }
    }
}

/// Returns the blocks that each rank reads in some epochs.
fn read_blocks(plan: &Plan, epochs: u64) -> Vec<Vec<HashSet<u64>>> {
    let ranks = (0..plan.world_size).map(|rank| {
        let mut sampler = Sampler::new(Plan { rank, ..plan.clone() }).unwrap();
        let mut found = vec![HashSet::new(); epochs as usize];
        while sampler.cursor().position < epochs * plan.length {
            let step = sampler.step().unwrap();
            let mut rows = Vec::new();
            plan.rows(&step, 0..step.samples - step.padded, &mut rows);
            for (k, row) in rows.into_iter().enumerate() {
                let epoch = (step.first + k as u64) / plan.length;
                if epoch < epochs {
                    found[epoch as usize].insert(plan.block_of(row as u64));
                }
            }
        }
        found
    });
    ranks.collect()
}

#[test]
fn ranks_read_only_their_own_partitions() {
    let sizes: Vec<u64> = (0..64).map(|number| 90 + number % 21).collect();
    let length: u64 = sizes.iter().sum();
    for tail in [Tail::Keep, Tail::Drop, Tail::Wrap] {
        for (world_size, partitions) in [(8, 8), (4, 8), (2, 2), (8, 24), (1, 8)] {
            let plan = Plan {
                length,
                batch_size: 240 / world_size,
                mode: Mode::Block,
                tail,
                seed: 3,
                window: Some(400),
                stride: None,
                rank: 0,
                world_size,
                epochs: None,
                blocks: blocks(&sizes),
                partitions,
                rows_per_step: None,
            };
            let ranks = read_blocks(&plan, 3);
            for epoch in 0..3 {
                let read: usize = ranks.iter().map(|rank| rank[epoch].len()).sum();
                // A block at the border of two partitions is read by both.
                assert!(read <= 64 + world_size as usize, "{read} with {tail:?}, {world_size}");
                assert!(ranks.iter().all(|rank| rank[epoch].len() >= 48 / world_size as usize));
            }
        }
    }
}

#[test]
fn what_is_listed_ahead_is_what_is_needed() {
    let mut numbers = Numbers(5);
    for round in 0..1500 {
        let tail = [Tail::Keep, Tail::Wrap, Tail::Pad, Tail::Drop][round % 4];
        let mut plan = any_plan(&mut numbers, tail);
        if tail == Tail::Drop && plan.span() > plan.length {
            plan.batch_size = 1;
        }
        plan.rank = numbers.below(plan.world_size);
        plan.epochs = Some(1 + numbers.below(3));
        let mut sampler = Sampler::new(plan.clone()).unwrap();
        sampler.seek(numbers.below(plan.total_steps().unwrap())).unwrap();
        let steps = 1 + numbers.below(9);
        let uses = sampler.blocks_ahead(steps).unwrap();
        assert!(uses.is_sorted_by_key(|used| used.first));
        for _ in 0..steps {
            let start = sampler.without_tail(sampler.cursor()).position;
            let Some(step) = sampler.step() else { break };
            let mut rows = Vec::new();
            plan.rows(&step, 0..step.samples, &mut rows);
            for row in rows {
                let block = plan.block_of(row as u64);
                assert!(
                    uses.iter().any(|used| used.block == block
                        && used.first <= start
                        && start < used.until),
                    "block {block} at {start} is not among {uses:?} of {plan:?}"
                );
            }
        }
    }
}

#[test]
fn windows_of_a_step_have_its_rows() {
    let mut numbers = Numbers(10);
    for round in 0..1500 {
        let tail = [Tail::Keep, Tail::Wrap, Tail::Pad][round % 3];
        let mut plan = any_plan(&mut numbers, tail);
        plan.rank = numbers.below(plan.world_size);
        plan.epochs = Some(1 + numbers.below(3));
        let mut sampler = Sampler::new(plan.clone()).unwrap();
        loop {
            let windows = sampler.windows().unwrap();
            let Some(step) = sampler.step() else {
                assert!(windows.is_empty());
                break;
            };
            let mut rows = Vec::new();
            plan.rows(&step, 0..step.samples, &mut rows);
            let mut rows = rows.into_iter();
            for used in windows {
                assert!(used.samples > 0);
                let blocks =
                    sampler.window_blocks(used.epoch, used.partition, used.window).unwrap();
                for row in rows.by_ref().take(used.samples as usize) {
                    assert!(blocks.contains(&plan.block_of(row as u64)), "{used:?} of {plan:?}");
                }
            }
            assert_eq!(rows.next(), None);
        }
        // All windows of an epoch have all blocks, and no window more than it may.
        let mut seen = HashSet::new();
        for partition in 0..plan.partitions {
            for window in 0.. {
                let Ok(blocks) = sampler.window_blocks(0, partition, window) else { break };
                assert!(!blocks.is_empty() && blocks.len() as u64 <= plan.window_len());
                seen.extend(blocks);
            }
        }
        let all: HashSet<u64> = (0..plan.length).map(|row| plan.block_of(row)).collect();
        assert_eq!(seen, all);
        assert_eq!(
            sampler.window_blocks(0, plan.partitions, 0).unwrap_err().kind(),
            "out-of-range"
        );
        assert_eq!(sampler.window_blocks(0, 0, u64::MAX).unwrap_err().kind(), "out-of-range");
    }
}

#[test]
fn what_is_listed_ahead_is_no_more_than_the_windows() {
    let sizes = [100; 64];
    let plan = Plan {
        length: 6400,
        batch_size: 20,
        window: Some(400),
        stride: None,
        world_size: 8,
        rank: 3,
        blocks: blocks(&sizes),
        partitions: 8,
        rows_per_step: None,
        ..any_plan(&mut Numbers(6), Tail::Keep)
    };
    let mut sampler = Sampler::new(plan).unwrap();
    for step in 0..80 {
        let uses = sampler.blocks_ahead(1).unwrap();
        // Windows of 400 rows are twenty steps long.
        let end = (step / 20 + 1) * 20 * 160;
        assert_eq!(uses.len(), 4);
        assert!(uses.iter().all(|used| used.first == step * 160));
        assert!(uses.iter().all(|used| used.until <= end && used.until > end - 160));
        let more = sampler.blocks_ahead(20).unwrap();
        let is_next_needed = step % 20 != 0;
        assert_eq!(more[..4], uses);
        assert_eq!(more.len(), if is_next_needed { 8 } else { 4 });
        sampler.step().unwrap();
    }
}

#[test]
fn a_full_last_step_is_required() {
    let plan = |length, batch_size| Plan {
        length,
        batch_size,
        mode: Mode::Shuffle,
        window: None,
        stride: None,
        world_size: 1,
        blocks: None,
        partitions: 1,
        ..any_plan(&mut Numbers(7), Tail::Error)
    };
    assert_eq!(Sampler::new(plan(10, 4)).unwrap_err().kind(), "invalid");
    let mut sampler = Sampler::new(plan(12, 4)).unwrap();
    assert_eq!(sampler.plan().steps_per_epoch(), 3);
    for _ in 0..7 {
        assert_eq!(sampler.step().unwrap().samples, 4);
    }
    sampler.resume(Cursor { position: 8, ..Cursor::default() }).unwrap();
    let error = sampler.resume(Cursor { position: 6, ..Cursor::default() }).unwrap_err();
    assert_eq!(error.kind(), "invalid");
    assert_eq!(sampler.cursor().position, 8);
}

#[test]
fn plans_of_blocks_that_make_no_sense_are_refused() {
    let good = Plan {
        length: 10,
        batch_size: 4,
        window: None,
        stride: None,
        world_size: 1,
        blocks: blocks(&[4, 6]),
        partitions: 2,
        rows_per_step: None,
        ..any_plan(&mut Numbers(8), Tail::Keep)
    };
    Sampler::new(good.clone()).unwrap();
    for bad in [
        Plan { blocks: blocks(&[4, 5]), ..good.clone() },
        Plan { stride: Some(2), ..good.clone() },
        Plan { partitions: 0, ..good.clone() },
        Plan { partitions: 1 << 25, ..good.clone() },
        Plan { rows_per_step: Some(0), ..good.clone() },
        Plan { mode: Mode::Shuffle, ..good.clone() },
        Plan { mode: Mode::Shuffle, blocks: None, ..good.clone() },
        Plan { world_size: 11, batch_size: 1, ..good.clone() },
    ] {
        assert_eq!(Sampler::new(bad.clone()).unwrap_err().kind(), "invalid", "{bad:?}");
    }
    for bad in [vec![], vec![0], vec![1, 10], vec![0, 7, 5, 10]] {
        assert_eq!(Blocks::new(bad).unwrap_err().kind(), "invalid");
    }
    let sampler = Sampler::new(Plan { mode: Mode::Shuffle, blocks: None, partitions: 1, ..good });
    assert_eq!(sampler.unwrap().blocks_ahead(1).unwrap_err().kind(), "invalid");
}

#[test]
fn many_blocks_cost_little() {
    let sizes = vec![1 << 20; 100_000];
    let plan = Plan {
        length: 100_000 << 20,
        batch_size: 256,
        window: Some(1 << 24),
        stride: None,
        world_size: 8,
        rank: 5,
        blocks: blocks(&sizes),
        partitions: 64,
        rows_per_step: None,
        ..any_plan(&mut Numbers(9), Tail::Keep)
    };
    let mut sampler = Sampler::new(plan.clone()).unwrap();
    sampler.seek(12_345_678).unwrap();
    for _ in 0..100 {
        let step = sampler.step().unwrap();
        let mut rows = Vec::new();
        plan.rows(&step, 0..step.samples, &mut rows);
        assert_eq!(rows.len(), 256);
    }
    assert!(sampler.blocks_ahead(100).unwrap().len() <= 8 * 18);
}
