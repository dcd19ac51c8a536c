//! libcomm.

pub mod env;
mod error;
mod handover;
pub mod node;
mod shm;
mod signature;
mod types;

pub use error::CommError;
pub use signature::Signature;
pub use types::{DataType, Op, Operation};
