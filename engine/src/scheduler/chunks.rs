//! How the prompts that run share what a step has left for them.

/// Max-min fair: every prompt gets an equal part, and what a short one leaves over goes to the longer ones. So a prompt
/// that needs less than its part is done in this step, however long the others are, and each gets something as long as
/// there are no more prompts than tokens.
///
/// Where the budget does not divide evenly, shorter ones get the odd tokens, then those that are first in `remaining`.
pub(super) fn share(remaining: &[u32], budget: u32) -> Vec<u32> {
    let mut parts = vec![0; remaining.len()];
    let mut order: Vec<usize> = (0..remaining.len()).collect();
    order.sort_by_key(|index| remaining[*index]);
    let mut left = budget;
    let mut open = remaining.len() as u32;
    for index in order {
        parts[index] = remaining[index].min(left.div_ceil(open));
        left -= parts[index];
        open -= 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_prompts_do_not_wait_for_long_ones() {
        assert_eq!(share(&[1000, 20, 1000], 220), [100, 20, 100]);
        assert_eq!(share(&[5, 5, 5], 2), [1, 1, 0]);
        assert_eq!(share(&[7], 100), [7]);
        assert_eq!(share(&[], 100), Vec::<u32>::new());
    }

    proptest! {
        #[test]
        fn the_budget_is_used_and_nobody_has_less_than_an_equal_part(
            remaining in prop::collection::vec(1_u32..500, 0..8),
            budget in 0_u32..600,
        ) {
            let parts = share(&remaining, budget);
            let total: u32 = remaining.iter().sum();
            prop_assert_eq!(parts.iter().sum::<u32>(), total.min(budget));
            for (part, wanted) in parts.iter().zip(&remaining) {
                prop_assert!(part <= wanted);
                prop_assert!(*part >= (*wanted).min(budget / remaining.len() as u32));
            }
        }
    }
}
