//! Collectives between the processes of one machine.
//!
//! ```
//! use comm::{Comm, Op};
//!
//! let comm = Comm::init()?; // under prun: one of its ranks; alone: rank 0 of 1
//! let mut gradients = vec![comm.rank() as f32; 1000];
//! comm.all_reduce_in_place(&mut gradients, Op::Avg)?;
//! comm.finalize()?;
//! # Ok::<(), comm::CommError>(())
//! ```
//!
//! Where to look: [`Comm`] has the calls, [`CommError`] what can go wrong, [`env`](mod@env) the variables that are
//! read, [`node`] the daemon's side. The shared memory is described in `shm/README.md` and proven by the
//! tests beside it; who sends what to whom is in `collectives/`, how a chunk travels in `protocol/`.
//! The C interface is `include/libcomm.h`.

mod bootstrap;
mod capi;
mod choose;
mod clock;
mod collectives;
mod comm;
#[doc(hidden)]
pub mod cuda;
mod device;
mod domains;
mod element;
pub mod env;
mod error;
pub mod fault;
mod fork_guard;
mod handover;
pub mod node;
mod numa;
#[doc(hidden)]
pub mod probe;
mod process;
mod protocol;
mod report;
mod settings;
#[doc(hidden)]
pub mod shm;
mod signature;
mod simd;
mod threads;
mod types;
mod usable_cpus;
mod verify;

pub use choose::{Algorithm, Protocol};
pub use comm::{Buffer, Comm, Request};
pub use element::{E4M3, E5M2, Element};
pub use error::CommError;
pub use report::report;
pub use signature::Signature;
pub use types::{DataType, Op, Operation};
pub use verify::Verify;

#[doc(hidden)]
pub use collectives::reference;
#[doc(hidden)]
pub use device::plan::{Path, Plan};
#[doc(hidden)]
pub use settings::Settings;
#[doc(hidden)]
pub use shm::mailbox::{Exchanged, Refusal};
