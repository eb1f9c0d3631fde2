//! The tree against a list, and at the edges of floating-point numbers.

use super::*;
use crate::permute::derive;

/// How many changes and draws the long tests make; `make faults` makes 10 million.
fn steps() -> u64 {
    std::env::var("RELIVE_DRAWS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

/// A number from 0 to below 1.
fn uniform(seed: u64, number: u64) -> f64 {
    (derive(seed, number) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The row at one position.
fn find(tree: &SumTree, at: f64) -> u64 {
    let mut row = None;
    tree.find(&mut [at], |found| assert_eq!(row.replace(found), None));
    row.unwrap()
}

/// Checks that every node is the sum of its children, and that only rows have weights.
fn check(tree: &SumTree) {
    let capacity = tree.capacity();
    assert!(capacity.is_power_of_two());
    for node in 1..capacity {
        assert_eq!(tree.nodes[node], tree.above(node));
    }
    let mut expected = vec![EMPTY; capacity];
    for row in tree.window() {
        let leaf = row as usize % capacity;
        assert_eq!(expected[leaf], EMPTY);
        expected[leaf] = Node::leaf(tree.priorities[leaf].powf(tree.alpha));
    }
    assert_eq!(tree.nodes[capacity..], expected);
}

#[test]
fn a_window_slides_over_the_leaves() {
    let mut tree = SumTree::new(1.0).unwrap();
    let mut model: Vec<f64> = Vec::new();
    let mut first = 0;
    for step in 0..3000 {
        let end = model.len() as u64;
        match derive(1, step) % 4 {
            0 | 1 => {
                let added = derive(2, step) % 5;
                tree.extend(end + added, 3.0).unwrap();
                model.extend((0..added).map(|_| 3.0));
            }
            2 if end - first > 40 => {
                first += derive(3, step) % 30;
                tree.evict(first).unwrap();
            }
            _ if end > 0 => {
                let rows: Vec<i64> =
                    (0..7).map(|k| (derive(4, 7 * step + k) % end) as i64).collect();
                let values: Vec<f64> = (0..7).map(|k| 0.5 + uniform(5, 7 * step + k)).collect();
                let ignored = tree.update(&rows, &values).unwrap();
                assert_eq!(
                    ignored,
                    rows.iter().filter(|&&row| (row as u64) < first).count() as u64
                );
                for (&row, &value) in rows.iter().zip(&values) {
                    model[row as usize] = value;
                }
            }
            _ => {}
        }
        check(&tree);
        let kept = &model[first as usize..];
        assert_eq!(tree.window(), first..model.len() as u64);
        assert_eq!(tree.priorities().unwrap(), kept);
        assert!((tree.total() - kept.iter().sum::<f64>()).abs() <= 1e-12 * tree.total());
        assert_eq!(tree.least(), kept.iter().copied().fold(f64::INFINITY, f64::min));
    }
    assert!(tree.capacity() < model.len(), "the window has never wrapped around");
    let same = SumTree::with(1.0, first, tree.capacity(), &model[first as usize..]).unwrap();
    assert_eq!(same.nodes, tree.nodes);
}

#[test]
fn rows_are_found_in_the_order_of_the_leaves() {
    let mut tree = SumTree::with(1.0, 6, 8, &[1.0, 2.0, 4.0, 8.0]).unwrap();
    // Leaves 6, 7, 0 and 1 have the rows 6, 7, 8 and 9.
    for (at, row) in [(0.0, 8), (3.9, 8), (4.0, 9), (12.0, 6), (13.0, 7), (14.9, 7), (99.0, 7)] {
        assert_eq!(find(&tree, at), row, "at {at}");
    }
    tree.evict(8).unwrap();
    assert_eq!([0.0, 4.0, 12.0, 99.0].map(|at| find(&tree, at)), [8, 9, 9, 9]);
    tree.set_alpha(0.0).unwrap();
    assert_eq!((tree.total(), find(&tree, 1.5)), (2.0, 9));
}

#[test]
fn many_rows_are_found_together() {
    let values: Vec<f64> = (0..300).map(|k| 2_f64.powf(20.0 * uniform(1, k))).collect();
    let tree = SumTree::with(1.0, 1000, 512, &values).unwrap();
    for count in [0, 1, 15, 16, 17, 64, 100] {
        let mut positions: Vec<f64> =
            (0..count).map(|k| uniform(count + 2, k) * tree.total()).collect();
        let expected: Vec<u64> = positions.iter().map(|&at| find(&tree, at)).collect();
        let mut rows = Vec::new();
        tree.find(&mut positions, |row| rows.push(row));
        assert_eq!(rows, expected);
    }
}

#[test]
fn sums_stay_exact() {
    let mut tree = SumTree::new(1.0).unwrap();
    tree.extend(1000, 1.0).unwrap();
    for step in 0..steps() / 100 {
        let number = |k: u64| 100 * step + k;
        let rows: Vec<i64> = (0..100).map(|k| (derive(1, number(k)) % 1000) as i64).collect();
        // Of 40 orders of magnitude: differences would lose the small ones.
        let values: Vec<f64> =
            (0..100).map(|k| 10_f64.powf(40.0 * uniform(2, number(k)) - 20.0)).collect();
        tree.update(&rows, &values).unwrap();
    }
    check(&tree);
    let mut values = tree.priorities().unwrap();
    values.sort_by(f64::total_cmp);
    let exact: f64 = values.iter().sum();
    assert!((tree.total() - exact).abs() <= 1e-12 * exact);
    // When the large ones are gone, the small ones are still exact.
    tree.update(&(0..1000).collect::<Vec<_>>(), &vec![1e-20; 1000]).unwrap();
    assert!((tree.total() - 1e-17).abs() <= 1e-12 * 1e-17);
}

#[test]
fn no_row_without_a_weight_is_drawn() {
    // Weights of all magnitudes, in a window that begins and ends inside of the tree.
    let mut tree = SumTree::new(1.0).unwrap();
    tree.extend(700, 1.0).unwrap();
    let rows: Vec<i64> = (0..700).collect();
    let values: Vec<f64> = (0..700).map(|k| 2_f64.powf(60.0 * uniform(1, k) - 30.0)).collect();
    tree.update(&rows, &values).unwrap();
    tree.evict(300).unwrap();
    let total = tree.total();
    let below_one = 1.0 - f64::EPSILON / 2.0;
    let edges = [0.0, total * below_one, total, total.next_up(), 2.0 * total];
    let draws = (0..steps()).map(|step| uniform(2, step) * total);
    for at in edges.into_iter().chain(draws) {
        let row = find(&tree, at);
        assert!(tree.window().contains(&row), "row {row} at {at}");
        assert!(tree.weight(row) > 0.0);
    }
    // Every boundary between two rows, and the numbers beside it.
    let mut sum = 0.0;
    for leaf in 0..tree.capacity() {
        sum += tree.nodes[tree.capacity() + leaf].sum;
        for at in [sum.next_down(), sum, sum.next_up()] {
            assert!(tree.weight(find(&tree, at.max(0.0))) > 0.0);
        }
    }
}

#[test]
fn bad_priorities_change_nothing() {
    let mut tree = SumTree::with(2.0, 2, 4, &[1.0, 2.0, 3.0]).unwrap();
    let before = tree.clone();
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-200, 1e200] {
        let error = tree.update(&[2, 3], &[5.0, bad]).unwrap_err();
        assert_eq!(error.kind(), "invalid", "{bad}");
        assert_eq!(tree.extend(6, bad).unwrap_err().kind(), "invalid");
    }
    assert_eq!(tree.update(&[2, 3], &[5.0]).unwrap_err().kind(), "invalid");
    assert_eq!(tree.update(&[2, 5], &[5.0, 5.0]).unwrap_err().kind(), "out-of-range");
    assert_eq!(tree.update(&[2, -1], &[5.0, 5.0]).unwrap_err().kind(), "out-of-range");
    assert_eq!(tree.evict(6).unwrap_err().kind(), "out-of-range");
    for bad in [-0.5, f64::NAN, f64::INFINITY, 1e6] {
        assert_eq!(tree.set_alpha(bad).unwrap_err().kind(), "invalid", "{bad}");
    }
    assert_eq!(tree.extend(MAX_LENGTH + 1, 1.0).unwrap_err().kind(), "invalid");
    assert_eq!((tree.nodes, tree.priorities), (before.nodes, before.priorities));
    for (first, capacity) in [(0, 3), (0, 2), (MAX_LENGTH, 4), (u64::MAX, 4)] {
        assert!(SumTree::with(1.0, first, capacity, &[1.0, 1.0, 1.0]).is_err());
    }
}

#[test]
fn rows_between_others_may_be_missing() {
    let mut tree = SumTree::with(1.0, 103, 1, &[]).unwrap();
    assert_eq!(tree.insert(&[103, 105, 109], 2.0).unwrap(), 3);
    assert_eq!((tree.window(), tree.total(), tree.capacity()), (103..110, 6.0, 8));
    // One that is there keeps its priority, and what has no row is not changed.
    assert_eq!(tree.update(&[105, 104, 102], &[5.0, 9.0, 9.0]).unwrap(), 2);
    assert_eq!(tree.insert(&[104, 105, 112], 3.0).unwrap(), 2);
    assert_eq!((tree.window(), tree.total(), tree.least()), (103..113, 15.0, 2.0));
    tree.evict(104).unwrap();
    assert_eq!(tree.insert(&[103], 7.0).unwrap(), 0);
    let saved = tree.priorities().unwrap();
    assert_eq!(saved, [3.0, 5.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 3.0]);
    let again = SumTree::with(1.0, 104, tree.capacity(), &saved).unwrap();
    for at in (0..=130).map(|tenths| f64::from(tenths) / 10.0) {
        assert_eq!(find(&again, at), find(&tree, at));
    }
    assert_eq!(find(&tree, 7.9), 105);
}

#[test]
fn rows_are_removed_anywhere() {
    let mut tree = SumTree::new(1.0).unwrap();
    tree.extend(6, 2.0).unwrap();
    tree.remove(&[5, 0, 3, 3, 99, -1]).unwrap();
    assert_eq!((tree.window(), tree.total(), tree.least()), (0..6, 6.0, 2.0));
    let saved = tree.priorities().unwrap();
    assert_eq!(saved, [0.0, 2.0, 2.0, 0.0, 2.0, 0.0]);
    assert_eq!([0.0, 2.0, 5.9, 99.0].map(|at| find(&tree, at)), [1, 2, 4, 4]);
    // They are ignored until they are added again, at the ends too.
    assert_eq!(tree.update(&[5, 0, 4], &[9.0, 9.0, 3.0]).unwrap(), 2);
    let again = SumTree::with(1.0, 0, tree.capacity(), &tree.priorities().unwrap()).unwrap();
    assert_eq!((again.nodes, again.priorities), (tree.nodes.clone(), tree.priorities.clone()));
    tree.set_alpha(0.0).unwrap();
    assert_eq!(tree.total(), 3.0);
    assert_eq!(tree.insert(&[0, 5], 1.0).unwrap(), 2);
    assert_eq!(tree.total(), 5.0);
}
