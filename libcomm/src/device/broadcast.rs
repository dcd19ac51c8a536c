//! Broadcast between GPUs: the kernels, and how a call is put into a stream. `kernels/device/broadcast.cuh` has the argument.
#![expect(unsafe_code, reason = "launches kernels on addresses")]

use std::sync::{Mutex, PoisonError};

use kernels::args::Args;

use super::plan::{self, Path, Plan};
use super::{Device, check_shift, load, ring_slot, starts_early};
use crate::cuda::{Address, Context, CudaError, Function, StreamRef};
use crate::error::CommError;
use crate::types::DataType;

/// Loaded at set-up, since loading may wait for kernels that wait for a peer.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    ll: Function,
    /// On buffers that are aligned and end with a whole pack; `_any` on all others.
    push: Function,
    push_any: Function,
    ring: Function,
    check: Function,
}

impl Kernels {
    /// The same, beginning only when what is before them in the stream is over.
    fn starting_late(self) -> Kernels {
        let late = |function: Function| function.starting_early(false);
        Kernels { ll: late(self.ll), push: late(self.push), push_any: late(self.push_any), ..self }
    }

    /// Once in each context, however many communicators there are.
    pub(super) fn load(context: Context, checked: bool) -> Result<Kernels, CudaError> {
        static LOADED: Mutex<Vec<(Context, bool, Kernels)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., kernels)) = loaded.iter().find(|(c, k, _)| *c == context && *k == checked) {
            return Ok(*kernels);
        }
        let early = !checked && starts_early(context)?;
        let image = match (checked, early) {
            (true, _) => "broadcast.checked",
            (false, true) => "broadcast_sm90",
            (false, false) => "broadcast",
        };
        let module = load(context, image)?;
        let function = |name: &str| module.function(name);
        let kernels = Kernels {
            ll: function("broadcast_ll")?.starting_early(early),
            push: function("broadcast_push")?.starting_early(early),
            push_any: function("broadcast_push_any")?.starting_early(early),
            ring: function("broadcast_ring")?,
            check: function("broadcast_check")?,
        };
        loaded.push((context, checked, kernels));
        Ok(kernels)
    }
}

/// One call, as the caller made it.
#[derive(Clone, Copy)]
pub(crate) struct BroadcastCall {
    pub(crate) buffer: Address,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) data_type: DataType,
    pub(crate) root: u32,
    pub(crate) stream: StreamRef,
}

/// In a signature, in the place of an operation: a broadcast, with its root in the lower bits.
pub(super) const IS_BROADCAST: u64 = 0x80;
/// In lines, no type and operation of an AllReduce.
const TAG: u64 = 0xff;

impl Device {
    /// The plan for a broadcast.
    pub(crate) fn plan_broadcast(&self, bytes: u64, forced: Option<Path>) -> Plan {
        match self.staged {
            true => self.plan(bytes, None),
            false => plan::plan_broadcast(&self.machine, bytes, forced),
        }
    }

    /// Has NCCL put one broadcast into its stream.
    pub(crate) fn broadcast_by_nccl(&mut self, call: &BroadcastCall) -> Result<(), CommError> {
        let _bound = self.context.bind()?;
        self.by_nccl(|nccl| nccl.broadcast(call))
    }

    /// Puts one broadcast into its stream. Returns before it is done.
    pub(crate) fn broadcast(&mut self, call: &BroadcastCall, plan: &Plan) -> Result<(), CudaError> {
        let _bound = self.context.bind()?;
        let kernels = self.broadcast.ok_or(CudaError::NoFunction("broadcast_ll"))?;
        let kernels = if self.may_start_early() { kernels } else { kernels.starting_late() };
        let whole = (call.buffer | call.bytes).is_multiple_of(16);
        let (kernel, longest) = match plan.path {
            Path::Ll => (kernels.ll, self.machine.arena.ll_message()),
            Path::Push => (if whole { kernels.push } else { kernels.push_any }, self.machine.arena.push_bytes),
            _ => (kernels.ring, u64::MAX),
        };
        let signature = call.data_type as u64 | (IS_BROADCAST | u64::from(call.root)) << 8 | call.count << 16;
        let common = Args {
            root: call.root as u8, // one of at most MAX_RANKS
            signature,
            tag: TAG,
            slot: ring_slot(&self.template, plan.blocks),
            ..self.template
        };
        let mut at = 0;
        while at < call.bytes {
            let (buffer, bytes) = (call.buffer + at, longest.min(call.bytes - at));
            let args = Args { send: buffer, recv: buffer, count: bytes, ..common };
            self.epoch += 1;
            self.keep_pace(call.stream)?;
            // SAFETY: the arguments hold the caller's buffer, valid until the stream is through by the caller's promise,
            // and arenas that live as long as this value, which waits for the context before it goes.
            unsafe { kernel.launch(plan.blocks, plan.threads, call.stream, &args)? };
            if self.compares {
                // A peer that waits in the call itself gives up first, and says for whom.
                let sums = Args { check: check_shift(bytes), limit_ns: 2 * args.limit_ns, ..args };
                // SAFETY: as above.
                unsafe { kernels.check.launch(self.check_blocks(), 512, call.stream, &sums)? };
            }
            at += bytes;
        }
        Ok(())
    }
}
