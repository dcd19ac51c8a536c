//! The network: 64 pixels → hidden units (ReLU) → 10 digits (softmax), and its gradient.
//!
//! All weights lie in one vector, so that one AllReduce carries the whole gradient:
//! `into_hidden[64][hidden] hidden_bias[hidden] into_output[hidden][10] output_bias[10]`.

use crate::data::{CLASSES, Image, PIXELS};
use crate::hash::fnv1a;
use crate::rng::{Purpose, Rng};

/// The network's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    hidden: usize,
    /// All weights, in the order that the module names.
    pub weights: Vec<f32>,
}

/// How well images were recognised: sums, which add up over ranks and batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Cross-entropy, summed over the images.
    pub loss: f64,
    /// Images whose likeliest digit was the right one.
    pub correct: f64,
}

/// The four parts of a weight vector, or of its gradient.
struct Parts<T> {
    into_hidden: T,
    hidden_bias: T,
    into_output: T,
    output_bias: T,
}

/// What the network makes of one image.
struct Activity {
    hidden: Vec<f32>,
    likelihood: [f32; CLASSES],
    tally: Tally,
}

impl Net {
    /// How many weights a network with this many hidden units has.
    pub fn weights_len(hidden: usize) -> usize {
        (PIXELS + 1) * hidden + (hidden + 1) * CLASSES
    }

    /// Random weights within ±√(6 / inputs) (He, uniform), biases of zero.
    pub fn new(hidden: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Purpose::Weights);
        let mut weights = vec![0.0; Self::weights_len(hidden)];
        let parts = split_mut(&mut weights, hidden);
        for (part, inputs) in [(parts.into_hidden, PIXELS), (parts.into_output, hidden)] {
            let limit = (6.0 / inputs as f32).sqrt();
            part.fill_with(|| rng.within(limit));
        }
        Self { hidden, weights }
    }

    /// A network with these weights; `None` if there are not as many as `hidden` units need.
    pub fn with_weights(hidden: usize, weights: Vec<f32>) -> Option<Self> {
        (weights.len() == Self::weights_len(hidden)).then_some(Self { hidden, weights })
    }

    /// A hash of the weights' bits: two ranks with the same hash hold the same network.
    pub fn hash(&self) -> u64 {
        fnv1a(self.weights.iter().flat_map(|weight| weight.to_le_bytes()))
    }

    /// Judges `images` without learning from them.
    pub fn judge<'a>(&self, images: impl Iterator<Item = &'a Image>) -> Tally {
        images.fold(Tally::default(), |sum, image| sum + self.look_at(image).tally)
    }

    /// Adds the gradient of the loss, summed over `images`, to `gradient`.
    pub fn add_gradient<'a>(&self, images: impl Iterator<Item = &'a Image>, gradient: &mut [f32]) -> Tally {
        images.fold(Tally::default(), |sum, image| {
            let activity = self.look_at(image);
            self.add_gradient_of(image, &activity, gradient);
            sum + activity.tally
        })
    }

    fn look_at(&self, image: &Image) -> Activity {
        let net = split(&self.weights, self.hidden);
        let mut hidden = net.hidden_bias.to_vec();
        for (&pixel, weights) in image.pixels.iter().zip(net.into_hidden.chunks_exact(self.hidden)) {
            add_scaled(&mut hidden, pixel, weights);
        }
        for unit in &mut hidden {
            *unit = unit.max(0.0);
        }
        let mut output = [0.0; CLASSES];
        output.copy_from_slice(net.output_bias);
        for (&unit, weights) in hidden.iter().zip(net.into_output.chunks_exact(CLASSES)) {
            add_scaled(&mut output, unit, weights);
        }
        let (likelihood, log_sum) = softmax(&output);
        let likeliest = (0..CLASSES).fold(0, |best, digit| if output[digit] > output[best] { digit } else { best });
        let tally = Tally {
            loss: f64::from(log_sum - output[image.digit]),
            correct: f64::from(u8::from(likeliest == image.digit)),
        };
        Activity { hidden, likelihood, tally }
    }

    fn add_gradient_of(&self, image: &Image, activity: &Activity, gradient: &mut [f32]) {
        let net = split(&self.weights, self.hidden);
        let gradient = split_mut(gradient, self.hidden);
        let mut at_output = activity.likelihood;
        at_output[image.digit] -= 1.0;
        add_scaled(gradient.output_bias, 1.0, &at_output);

        let mut at_hidden = vec![0.0; self.hidden];
        let rows = net.into_output.chunks_exact(CLASSES).zip(gradient.into_output.chunks_exact_mut(CLASSES));
        for ((&unit, delta), (weights, row)) in activity.hidden.iter().zip(&mut at_hidden).zip(rows) {
            add_scaled(row, unit, &at_output);
            if unit > 0.0 {
                *delta = weights.iter().zip(&at_output).map(|(weight, error)| weight * error).sum();
            }
        }
        add_scaled(gradient.hidden_bias, 1.0, &at_hidden);
        for (&pixel, row) in image.pixels.iter().zip(gradient.into_hidden.chunks_exact_mut(self.hidden)) {
            add_scaled(row, pixel, &at_hidden);
        }
    }
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { loss: self.loss + other.loss, correct: self.correct + other.correct }
    }
}

/// The likelihood of each digit, and the logarithm of the sum that made them add up to one. The largest
/// output is taken off first, so that no exponential overflows.
fn softmax(output: &[f32; CLASSES]) -> ([f32; CLASSES], f32) {
    let largest = output.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials = output.map(|value| (value - largest).exp());
    let sum: f32 = exponentials.iter().sum();
    (exponentials.map(|value| value / sum), largest + sum.ln())
}

fn add_scaled(target: &mut [f32], factor: f32, source: &[f32]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target += factor * source;
    }
}

fn split(all: &[f32], hidden: usize) -> Parts<&[f32]> {
    let (into_hidden, rest) = all.split_at(PIXELS * hidden);
    let (hidden_bias, rest) = rest.split_at(hidden);
    let (into_output, output_bias) = rest.split_at(hidden * CLASSES);
    Parts { into_hidden, hidden_bias, into_output, output_bias }
}

fn split_mut(all: &mut [f32], hidden: usize) -> Parts<&mut [f32]> {
    let (into_hidden, rest) = all.split_at_mut(PIXELS * hidden);
    let (hidden_bias, rest) = rest.split_at_mut(hidden);
    let (into_output, output_bias) = rest.split_at_mut(hidden * CLASSES);
    Parts { into_hidden, hidden_bias, into_output, output_bias }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Data;

    #[test]
    fn gradient_is_the_slope_of_the_loss() {
        const STEP: f32 = 1e-2;
        let data = Data::split(3);
        let batch = &data.order(3, 0)[..8];
        let net = Net::new(5, 3);
        let mut gradient = vec![0.0; net.weights.len()];
        net.add_gradient(data.images(batch), &mut gradient);

        let loss_at = |index: usize, shift: f32| {
            let mut moved = net.clone();
            moved.weights[index] += shift;
            moved.judge(data.images(batch)).loss
        };
        let (mut error, mut size) = (0.0, 0.0);
        for (index, &exact) in gradient.iter().enumerate() {
            let slope = (loss_at(index, STEP) - loss_at(index, -STEP)) / f64::from(2.0 * STEP);
            error += (slope - f64::from(exact)).powi(2);
            size += slope.powi(2);
        }
        assert!(error.sqrt() < 0.01 * size.sqrt(), "off by {} of {}", error.sqrt(), size.sqrt());
    }

    #[test]
    fn softmax_survives_large_outputs() {
        let (likelihood, log_sum) = softmax(&[1e4, 0.0, -1e4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((likelihood[0], likelihood[2], log_sum), (1.0, 0.0, 1e4));
    }
}
