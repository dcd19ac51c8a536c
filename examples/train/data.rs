//! The images, embedded: DATA.md beside this file names their source and licence.

use crate::rng::{Purpose, Rng};

/// Pixels of an image, row by row.
pub const PIXELS: usize = 64;
/// Digits there are.
pub const CLASSES: usize = 10;

const IMAGES: usize = 1797;
const RECORD_BYTES: usize = PIXELS + 1;
const HELD_OUT_PERCENT: usize = 20;
static DIGITS: &[u8] = include_bytes!("digits.bin");
const _: () = assert!(include_bytes!("digits.bin").len() == IMAGES * RECORD_BYTES);

/// One handwritten digit.
pub struct Image {
    /// Ink from 0 to 1.
    pub pixels: [f32; PIXELS],
    /// What the writer meant.
    pub digit: usize,
}

/// The images, split by a seed into those to learn from and those to be judged by.
pub struct Data {
    images: Vec<Image>,
    training: Vec<usize>,
    held_out: Vec<usize>,
}

impl Data {
    /// Shuffles the images by `seed` and holds out the last 20 %.
    pub fn split(seed: u64) -> Self {
        let images: Vec<Image> = DIGITS.chunks_exact(RECORD_BYTES).map(decode).collect();
        let mut training: Vec<usize> = (0..images.len()).collect();
        Rng::new(seed, Purpose::Split).shuffle(&mut training);
        let held_out = training.split_off(images.len() - images.len() * HELD_OUT_PERCENT / 100);
        Self { images, training, held_out }
    }

    /// How many images there are to learn from.
    pub fn training_len(&self) -> usize {
        self.training.len()
    }

    /// The training images in the order of this epoch.
    pub fn order(&self, seed: u64, epoch: u32) -> Vec<usize> {
        let mut order = self.training.clone();
        Rng::new(seed, Purpose::Epoch(epoch)).shuffle(&mut order);
        order
    }

    /// The images that nobody learns from.
    pub fn held_out(&self) -> &[usize] {
        &self.held_out
    }

    /// The images that `indices` name.
    pub fn images<'a>(&'a self, indices: &'a [usize]) -> impl Iterator<Item = &'a Image> {
        indices.iter().map(|&index| &self.images[index])
    }
}

fn decode(record: &[u8]) -> Image {
    let mut pixels = [0.0; PIXELS];
    for (pixel, &byte) in pixels.iter_mut().zip(record) {
        *pixel = f32::from(byte) / 16.0;
    }
    Image { pixels, digit: usize::from(record[PIXELS]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::fnv1a;

    #[test]
    fn embedded_images_are_the_published_ones() {
        let mut of_class = [0; CLASSES];
        for record in DIGITS.chunks_exact(RECORD_BYTES) {
            assert!(record[..PIXELS].iter().all(|&pixel| pixel <= 16));
            of_class[usize::from(record[PIXELS])] += 1;
        }
        assert_eq!(of_class, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert_eq!(fnv1a(DIGITS.iter().copied()), 0x7768_69cc_e379_5967);
    }

    #[test]
    fn no_image_is_both_learnt_and_held_out() {
        let data = Data::split(1);
        assert_eq!((data.training_len(), data.held_out().len()), (1438, 359));
        let mut all = [data.order(1, 3), data.held_out().to_vec()].concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..IMAGES));
    }
}
