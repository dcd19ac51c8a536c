//! Modules of kernels, and their launch.

use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::context::Context;
use super::stream::StreamRef;
use super::sys::{CudaError, LaunchAttribute, LaunchConfiguration, Opaque, Result};

/// A loaded image. Stays loaded for the life of the process: graphs of the caller's may hold its kernels.
pub struct Module {
    context: Context,
    raw: Opaque,
}

// SAFETY: the driver's modules may be used from any thread.
unsafe impl Send for Module {}

impl Module {
    /// Loads PTX, which ends with a NUL. What the compiler said is part of the error.
    pub fn load(context: Context, ptx: &str) -> Result<Module> {
        assert!(ptx.ends_with('\0'));
        const ERROR_LOG: c_int = 5;
        const ERROR_LOG_BYTES: c_int = 6;
        let _bound = context.bind()?;
        let mut log = vec![0u8; 4096];
        let mut names = [ERROR_LOG, ERROR_LOG_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut raw = null_mut();
        // SAFETY: a NUL-terminated image, and two options with their values.
        let loaded = unsafe {
            context.driver().module_load(&mut raw, ptx.as_ptr().cast(), 2, names.as_mut_ptr(), values.as_mut_ptr())
        };
        match loaded {
            Ok(()) => Ok(Module { context, raw }),
            Err(CudaError::Status { call, status, name }) => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
                let said = String::from_utf8_lossy(&log[..end]);
                Err(CudaError::Status { call, status, name: format!("{name} {}", said.trim()).trim().to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    /// The kernel of that name.
    pub fn function(&self, name: &str) -> Result<Function> {
        let c_name = CString::new(name).unwrap_or_default();
        let _bound = self.context.bind()?;
        let mut raw = null_mut();
        // SAFETY: a loaded module and a NUL-terminated name.
        unsafe { self.context.driver().module_function(&mut raw, self.raw, c_name.as_ptr()) }?;
        self.load_now(raw)?;
        Ok(Function { context: self.context, raw, early: false })
    }

    /// Has the driver load the kernel at once. Left to its first launch, that may wait for all work of the context,
    /// and so for a kernel that waits for that very launch.
    fn load_now(&self, function: Opaque) -> Result<()> {
        const REGISTERS: c_int = 4;
        let driver = self.context.driver();
        let mut registers = 0;
        // SAFETY: a function of a loaded module.
        unsafe {
            driver.function_attribute(&mut registers, REGISTERS, function)?;
            match driver.function_load(function) {
                Err(CudaError::NoFunction(_)) => Ok(()), // before 12.4 asking for an attribute has to do
                done => done,
            }
        }
    }
}

/// Whether launches of this process are made one at a time. Where two threads launch in one context at the same moment, each in a
/// stream of its own, the driver may have the one's work wait for the other's; ranks that are such threads then wait for each
/// other for ever, once a call consists of several kernels, as a verified one does.
///
/// What was tried (580.159.04, one H200, two to five such ranks, verified; 91 trials of `prun selftest --only faults`): without
/// this, one trial in three to all of them end at their time limit, every thread having launched all of its kernels; with it,
/// none. Modules loaded eagerly, stacks set aside before (`cuCtxSetLimit`), 8 or 32 connections, kernels without shared memory:
/// no difference. With one connection nothing helps.
///
/// So ranks that find others of their process on their GPU ask for this, and see to it that none of their launches waits for room
/// in its stream (`device/pace.rs`); nobody else pays for it. Kernels of the program's own in such a stream can still fill it, some
/// thousand of them: whoever lets ranks share a process and a GPU waits for them now and then.
static ONE_AT_A_TIME: AtomicBool = AtomicBool::new(false);
/// Held during each launch then.
static LAUNCHING: Mutex<()> = Mutex::new(());

/// From now on launches of this process are made one at a time.
pub fn launch_one_at_a_time() {
    ONE_AT_A_TIME.store(true, Relaxed);
}

/// A kernel.
#[derive(Clone, Copy)]
pub struct Function {
    context: Context,
    raw: Opaque,
    early: bool,
}

// SAFETY: as for Module.
unsafe impl Send for Function {}

impl Function {
    /// Whether its launches begin while what is before them in the stream still ends. The kernel must then wait for
    /// that itself (`griddepcontrol.wait`) before it touches memory, and always.
    pub fn starting_early(self, early: bool) -> Function {
        Function { early, ..self }
    }

    /// Puts one launch into the stream.
    ///
    /// # Safety
    /// `A` is the kernel's one parameter, and what it points to is valid until the kernel is done.
    #[inline]
    pub unsafe fn launch<A>(&self, blocks: u32, threads: u32, stream: StreamRef, arguments: &A) -> Result<()> {
        let mut list = [(&raw const *arguments).cast_mut().cast::<c_void>()];
        let one_at_a_time = ONE_AT_A_TIME.load(Relaxed);
        let _alone = one_at_a_time.then(|| LAUNCHING.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the driver copies the arguments before it returns; the rest is the caller's.
        unsafe {
            let driver = self.context.driver();
            if self.early {
                const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;
                let mut attribute = LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, value: [0; 8] };
                attribute.value[0] = 1;
                let configuration = LaunchConfiguration {
                    grid: [blocks, 1, 1],
                    block: [threads, 1, 1],
                    shared: 0,
                    stream: stream.raw(),
                    attributes: &attribute,
                    attribute_count: 1,
                };
                return driver.launch_extended(&configuration, self.raw, list.as_mut_ptr(), null_mut());
            }
            driver.launch(self.raw, blocks, 1, 1, threads, 1, 1, 0, stream.raw(), list.as_mut_ptr(), null_mut())
        }
    }
}
