//! The CUDA driver, loaded at run time: owned, safe types over a table of its functions.
//!
//! Nothing here needs a toolkit to build or a driver to load. A missing library, a missing function and every status
//! that is not success are an error value, [`CudaError`]; a status is a number, since a newer driver may return
//! ones that nobody here has heard of.
#![expect(unsafe_code, reason = "calls the driver")]

pub mod context;
pub mod ipc;
pub mod launch;
pub mod memory;
pub mod stream;
pub mod sys;

pub use context::Context;
pub use ipc::{Handle, PeerBuffer};
pub use launch::{Function, Module, launch_one_at_a_time};
pub use memory::{DeviceBuffer, HostBuffer, Plain, PointerKind, Registered};
pub use stream::{Event, Graph, Stream, StreamRef};
pub use sys::{CudaError, Driver};

/// An address on a device.
pub type Address = u64;
