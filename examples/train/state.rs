//! Where the training stands, and what a step does to it. Nothing here communicates: a step is `contribution`
//! on each rank, a sum over the ranks, and `advance` on each rank.

use crate::data::Data;
use crate::net::{Net, Tally};
use crate::options::Settings;
use crate::share::share;

/// Everything that the rest of the run depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// What the run was started with.
    pub settings: Settings,
    /// The weights.
    pub net: Net,
    /// What the last steps added to each weight.
    pub velocity: Vec<f32>,
    /// Epochs that are complete.
    pub epoch: u32,
    /// Steps of the present epoch that are complete.
    pub step: usize,
    /// How the images of those steps were recognised.
    pub tally: Tally,
}

impl State {
    /// The first step is yet to come.
    pub fn new(settings: Settings) -> Self {
        let net = Net::new(settings.hidden, settings.seed);
        let velocity = vec![0.0; net.weights.len()];
        Self { settings, net, velocity, epoch: 0, step: 0, tally: Tally::default() }
    }

    /// The images of the next step; empty at the end of the epoch. The last batch may be a short one.
    pub fn batch<'a>(&self, order: &'a [usize]) -> &'a [usize] {
        order.chunks(self.settings.batch).nth(self.step).unwrap_or_default()
    }

    /// How many numbers a contribution has behind the gradient.
    pub const TOLD: usize = 3;

    /// Fills `vote` with what this rank adds to the step: the gradient of its share of the batch, how its
    /// images were recognised, and whether it was asked to stop. Since these are sums, not means, any division
    /// of the batch among ranks gives the same total; and since the wish to stop travels with the gradient, all
    /// ranks stop at the same step.
    pub fn contribution(
        &self,
        data: &Data,
        batch: &[usize],
        (rank, size): (usize, usize),
        stop: bool,
        vote: &mut Vec<f32>,
    ) {
        vote.clear();
        vote.resize(self.net.weights.len(), 0.0);
        let tally = self.net.add_gradient(data.images(&batch[share(batch.len(), rank, size)]), vote);
        vote.extend([tally.loss as f32, tally.correct as f32, f32::from(u8::from(stop))]);
    }

    /// Takes the step that the sum of all contributions asks for: momentum keeps part of the last step, the
    /// mean gradient of the batch adds the rest. Returns whether a rank was asked to stop.
    pub fn advance(&mut self, sum: &[f32], images: usize) -> bool {
        let (gradient, rest) = sum.split_at(self.net.weights.len());
        let Settings { lr, momentum, .. } = self.settings;
        let scale = lr / images as f32;
        for ((weight, velocity), slope) in self.net.weights.iter_mut().zip(&mut self.velocity).zip(gradient) {
            *velocity = momentum * *velocity - scale * slope;
            *weight += *velocity;
        }
        self.step += 1;
        self.tally = self.tally + Tally { loss: f64::from(rest[0]), correct: f64::from(rest[1]) };
        rest[2] > 0.0
    }

    /// The epoch is complete.
    pub fn end_epoch(&mut self) {
        self.epoch += 1;
        self.step = 0;
        self.tally = Tally::default();
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Trains as `ranks` ranks would, in one process, for this many further steps.
    pub fn train(state: &mut State, data: &Data, ranks: usize, steps: usize) {
        for _ in 0..steps {
            let order = data.order(state.settings.seed, state.epoch);
            let batch = state.batch(&order);
            let mut sum = vec![0.0; state.net.weights.len() + 3];
            let mut vote = Vec::new();
            for rank in 0..ranks {
                state.contribution(data, batch, (rank, ranks), false, &mut vote);
                sum.iter_mut().zip(&vote).for_each(|(sum, part)| *sum += part);
            }
            assert!(!state.advance(&sum, batch.len()));
            if state.batch(&order).is_empty() {
                state.end_epoch();
            }
        }
    }

    #[test]
    fn any_number_of_ranks_learns_the_same_within_rounding() {
        let settings = Settings { hidden: 16, batch: 30, ..Settings::default() };
        let data = Data::split(settings.seed);
        let mut alone = State::new(settings.clone());
        train(&mut alone, &data, 1, 60);
        for ranks in [2, 3, 4, 7, 31] {
            let mut state = State::new(settings.clone());
            train(&mut state, &data, ranks, 60);
            assert_eq!((state.epoch, state.step), (1, 12));
            let pairs = state.net.weights.iter().zip(&alone.net.weights);
            let furthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(furthest < 1e-4, "{ranks} ranks: a weight is {furthest} off");
        }
    }

    #[test]
    fn one_rank_that_was_asked_to_stop_stops_all() {
        let data = Data::split(1);
        let state = State::new(Settings::default());
        let order = data.order(1, 0);
        let batch = state.batch(&order);
        for (asked, expected) in [([false, false], false), ([false, true], true), ([true, true], true)] {
            let votes = [0, 1].map(|rank| {
                let mut vote = Vec::new();
                state.contribution(&data, batch, (rank, 2), asked[rank], &mut vote);
                vote
            });
            let sum: Vec<f32> = votes[0].iter().zip(&votes[1]).map(|(a, b)| a + b).collect();
            assert_eq!(state.clone().advance(&sum, batch.len()), expected);
        }
    }

    #[test]
    fn an_epoch_takes_each_image_once() {
        let data = Data::split(1);
        let mut state = State::new(Settings { batch: 100, ..Settings::default() });
        let order = data.order(1, 0);
        let mut seen = Vec::new();
        while !state.batch(&order).is_empty() {
            seen.extend_from_slice(state.batch(&order));
            state.step += 1;
        }
        assert_eq!((seen, state.step), (order, 15));
    }
}
