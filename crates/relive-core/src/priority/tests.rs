//! Draws: their distribution, what they depend on, and threads.

use std::sync::Arc;
use std::thread;

use super::*;

fn priorities(values: &[f64], alpha: f64, beta: f64) -> Priorities {
    let made = Priorities::new(values.len() as u64, alpha, beta).unwrap();
    let rows: Vec<i64> = (0..values.len() as i64).collect();
    made.update(&rows, values).unwrap();
    made
}

#[test]
fn rows_are_drawn_in_proportion() {
    let values = [1.0, 2.0, 3.0, 4.0, 90.0];
    let made = priorities(&values, 0.5, 1.0);
    let mut counts = [0_u64; 5];
    let draws = 40_000;
    for step in 0..draws / 4 {
        for row in made.draw(7, 4 * step, 4, None).unwrap().unwrap().rows {
            counts[row as usize] += 1;
        }
    }
    let total: f64 = values.iter().map(|value| value.sqrt()).sum();
    let statistic: f64 = counts
        .iter()
        .zip(values)
        .map(|(&count, value)| {
            let expected = draws as f64 * value.sqrt() / total;
            (count as f64 - expected).powi(2) / expected
        })
        .sum();
    assert!(statistic < 18.5, "chi-square with 4 degrees of freedom: {statistic}"); // 0.1 %
}

#[test]
fn each_part_of_the_sum_has_one_draw() {
    let made = Priorities::new(64, 1.0, 1.0).unwrap();
    for step in 0..100 {
        let drawn = made.draw(3, 16 * step, 16, None).unwrap().unwrap();
        for (part, row) in drawn.rows.iter().enumerate() {
            assert_eq!(row / 4, part as i64);
        }
        assert_eq!(drawn.weights, [1.0; 16]);
    }
}

#[test]
fn weights_make_up_for_the_probability() {
    let made = priorities(&[1.0, 4.0, 16.0], 0.5, 1.0);
    let weights = |made: &Priorities| {
        let drawn = made.draw(0, 0, 300, None).unwrap().unwrap();
        let mut weights = [0.0; 3];
        for (&row, &weight) in drawn.rows.iter().zip(&drawn.weights) {
            weights[row as usize] = weight;
        }
        weights
    };
    assert_eq!(weights(&made), [1.0, 0.5, 0.25]);
    made.set_beta(0.5).unwrap();
    assert_eq!(weights(&made), [1.0, 0.5_f32.sqrt(), 0.5]);
    made.set_beta(0.0).unwrap();
    assert_eq!(weights(&made), [1.0; 3]);
    made.set_beta(1.0).unwrap();
    made.set_alpha(1.0).unwrap();
    assert_eq!(weights(&made), [1.0, 0.25, 0.0625]);
}

#[test]
fn draws_depend_on_seed_position_and_tree() {
    let values: Vec<f64> = (1..100).map(f64::from).collect();
    let made = priorities(&values, 0.6, 0.4);
    let first = made.draw(1, 0, 32, None).unwrap();
    assert_eq!(made.draw(1, 0, 32, None).unwrap(), first);
    assert_eq!(priorities(&values, 0.6, 0.4).draw(1, 0, 32, None).unwrap(), first);
    assert_ne!(made.draw(2, 0, 32, None).unwrap(), first);
    assert_ne!(made.draw(1, 32, 32, None).unwrap(), first);
    made.update(&[50], &[1000.0]).unwrap();
    assert_ne!(made.draw(1, 0, 32, None).unwrap(), first);
}

#[test]
fn new_rows_have_the_largest_priority_so_far() {
    let made = priorities(&[2.0, 5.0], 1.0, 1.0);
    made.update(&[1], &[3.0]).unwrap();
    made.extend(4).unwrap();
    assert_eq!(made.save().unwrap().priorities, [2.0, 3.0, 5.0, 5.0]);
    made.evict(3).unwrap();
    made.update(&[0, 3, 2], &[9.0, 1.0, 9.0]).unwrap();
    assert_eq!((made.ignored().unwrap(), made.window().unwrap()), (2, 3..4));
    assert_eq!(made.draw(0, 0, 3, None).unwrap().unwrap().rows, [3; 3]);
    assert_eq!(made.draw(0, 0, 3, Some(0..4)).unwrap(), None);
    made.evict(4).unwrap();
    assert_eq!(made.draw(0, 0, 3, None).unwrap_err().kind(), "invalid");
}

#[test]
fn what_was_saved_draws_the_same() {
    let made = priorities(&[1.0, 2.0, 3.0], 0.7, 0.3);
    made.extend(11).unwrap();
    made.evict(6).unwrap();
    made.update(&[2, 7], &[1.0, 8.0]).unwrap();
    let saved = made.save().unwrap();
    let other = Priorities::new(1, 1.0, 1.0).unwrap();
    other.restore(&saved).unwrap();
    assert_eq!(other.save().unwrap(), saved);
    for priorities in [&made, &other] {
        priorities.extend(30).unwrap();
    }
    let draw = |from: &Priorities| from.draw(5, 10, 64, None).unwrap();
    assert_eq!(draw(&other), draw(&made));
    for bad in [
        Saved { largest: f64::NAN, ..saved.clone() },
        Saved { beta: -1.0, ..saved.clone() },
        Saved { capacity: 5, ..saved.clone() },
        Saved { priorities: vec![-1.0], ..saved },
    ] {
        assert_eq!(other.restore(&bad).unwrap_err().kind(), "invalid");
    }
    assert_eq!(draw(&other), draw(&made));
}

#[test]
fn threads_draw_while_others_change_priorities() {
    let made = Arc::new(Priorities::new(1000, 1.0, 0.5).unwrap());
    let learners: Vec<_> = (0..2)
        .map(|learner| {
            let made = Arc::clone(&made);
            thread::spawn(move || {
                for step in 0..300_u64 {
                    let rows: Vec<i64> =
                        (0..50).map(|k| (derive(learner, 50 * step + k) % 1000) as i64).collect();
                    made.update(&rows, &vec![1.0 + step as f64; 50]).unwrap();
                    made.extend(1000 + step).unwrap();
                    made.evict(step).unwrap();
                }
            })
        })
        .collect();
    for step in 0..300_u64 {
        let drawn = made.draw(1, 64 * step, 64, None).unwrap().unwrap();
        assert!(drawn.rows.iter().all(|row| (0..1300).contains(row)));
        assert!(drawn.weights.iter().all(|weight| (0.0..=1.0).contains(weight)));
    }
    for learner in learners {
        learner.join().unwrap();
    }
    assert_eq!(made.window().unwrap(), 299..1299);
}

#[test]
fn a_forked_child_cannot_use_them() {
    let mut made = Priorities::new(3, 1.0, 1.0).unwrap();
    made.owner = OwnerProcess::other();
    assert_eq!(made.window().unwrap_err().kind(), "closed");
    assert_eq!(made.draw(0, 0, 1, None).unwrap_err().kind(), "closed");
}
