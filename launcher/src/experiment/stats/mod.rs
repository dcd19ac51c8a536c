//! What lists of figures say, and how surely. Pure: values in, values out.
//!
//! [`describe`] is about one variant, [`compare`] about two, [`warnings`] about what looks wrong.

pub mod beta;
pub mod compare;
pub mod describe;
pub mod rng;
pub mod warnings;
