//! The driver's functions: one table, one method each, which names the call in its error.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;

/// Why a call of the driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver to load.
    #[error("cannot load the CUDA driver: {0}")]
    NoDriver(String),
    /// The driver is older than the function.
    #[error("this CUDA driver has no {0}")]
    NoFunction(&'static str),
    /// The call returned something other than success.
    #[error("{call}: {name} ({status})")]
    Status {
        /// The function.
        call: &'static str,
        /// What it returned.
        status: i32,
        /// How the driver calls that.
        name: String,
    },
}

impl CudaError {
    /// The status, where there is one.
    pub fn status(&self) -> Option<i32> {
        match self {
            CudaError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether it says that a stream is one no more. The driver promises nothing of a stream that was destroyed, but mostly
    /// says so.
    pub(crate) fn means_destroyed(&self) -> bool {
        const INVALID_HANDLE: i32 = 400;
        const CONTEXT_IS_DESTROYED: i32 = 709;
        matches!(self.status(), Some(INVALID_HANDLE | CONTEXT_IS_DESTROYED))
    }

    /// Whether it says that this process cannot have a GPU's memory: it has no driver, or one that finds no GPU which it
    /// serves.
    pub fn means_no_gpu(&self) -> bool {
        const STUB_LIBRARY: i32 = 34;
        const NO_DEVICE: i32 = 100;
        const SYSTEM_NOT_READY: i32 = 802;
        const SYSTEM_DRIVER_MISMATCH: i32 = 803;
        const COMPAT_NOT_SUPPORTED_ON_DEVICE: i32 = 804;
        match self {
            CudaError::NoDriver(_) => true,
            CudaError::NoFunction(_) => false,
            CudaError::Status { status, .. } => {
                [STUB_LIBRARY, NO_DEVICE, SYSTEM_NOT_READY, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE]
                    .contains(status)
            }
        }
    }
}

/// Result of every call.
pub type Result<T> = std::result::Result<T, CudaError>;

/// An opaque thing of the driver's.
pub type Opaque = *mut c_void;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; 64]);

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfiguration {
    /// Blocks in x, y and z.
    pub grid: [c_uint; 3],
    /// Threads of a block in x, y and z.
    pub block: [c_uint; 3],
    /// Bytes of shared memory that the launch adds.
    pub shared: c_uint,
    /// Where it goes.
    pub stream: Opaque,
    /// What else holds for it.
    pub attributes: *const LaunchAttribute,
    /// How many of those.
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
pub struct LaunchAttribute {
    /// Which one.
    pub id: c_int,
    /// Its value, a union of 64 bytes of which numbers take the first.
    pub value: [u64; 8],
}

const _: () = assert!(size_of::<LaunchConfiguration>() == 56 && size_of::<LaunchAttribute>() == 72);

macro_rules! table {
    ($($method:ident, $symbol:literal, ($($name:ident: $type:ty),*);)*) => {
        /// The driver, for as long as the process lives: it cannot be unloaded.
        pub struct Driver {
            _library: Library,
            error_name: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
            $($method: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        impl Driver {
            fn of(library: Library) -> Driver {
                // SAFETY: each symbol, where it is there, is the function of the driver's documented interface
                // with this signature, and lives as long as the library, which is never unloaded.
                unsafe {
                    Driver {
                        error_name: library.get(b"cuGetErrorName\0").ok().map(|symbol| *symbol),
                        $($method: library.get(concat!($symbol, "\0").as_bytes()).ok().map(|symbol| *symbol),)*
                        _library: library,
                    }
                }
            }

            $(
                #[doc = concat!("`", $symbol, "`.")]
                ///
                /// # Safety
                /// As the driver documents it.
                #[inline]
                #[allow(clippy::too_many_arguments, reason = "the driver's")]
                pub unsafe fn $method(&self, $($name: $type),*) -> Result<()> {
                    let function = self.$method.ok_or(CudaError::NoFunction($symbol))?;
                    // SAFETY: the caller's.
                    match unsafe { function($($name),*) } {
                        0 => Ok(()),
                        status => Err(self.error($symbol, status)),
                    }
                }
            )*
        }
    };
}

table! {
    init, "cuInit", (flags: c_uint);
    driver_version, "cuDriverGetVersion", (version: *mut c_int);
    device_get, "cuDeviceGet", (device: *mut c_int, ordinal: c_int);
    device_count, "cuDeviceGetCount", (count: *mut c_int);
    device_attribute, "cuDeviceGetAttribute", (value: *mut c_int, attribute: c_int, device: c_int);
    device_uuid, "cuDeviceGetUuid", (uuid: *mut [u8; 16], device: c_int);
    device_name, "cuDeviceGetName", (name: *mut c_char, length: c_int, device: c_int);
    device_memory, "cuDeviceTotalMem_v2", (bytes: *mut usize, device: c_int);
    device_pci, "cuDeviceGetPCIBusId", (name: *mut c_char, length: c_int, device: c_int);
    can_access_peer, "cuDeviceCanAccessPeer", (can: *mut c_int, device: c_int, peer: c_int);
    primary_retain, "cuDevicePrimaryCtxRetain", (context: *mut Opaque, device: c_int);
    context_current, "cuCtxGetCurrent", (context: *mut Opaque);
    context_set, "cuCtxSetCurrent", (context: Opaque);
    context_push, "cuCtxPushCurrent_v2", (context: Opaque);
    context_pop, "cuCtxPopCurrent_v2", (context: *mut Opaque);
    context_device, "cuCtxGetDevice", (device: *mut c_int);
    context_synchronize, "cuCtxSynchronize", ();
    enable_peer, "cuCtxEnablePeerAccess", (context: Opaque, flags: c_uint);
    disable_peer, "cuCtxDisablePeerAccess", (context: Opaque);
    memory_allocate, "cuMemAlloc_v2", (address: *mut u64, bytes: usize);
    memory_free, "cuMemFree_v2", (address: u64);
    memory_set, "cuMemsetD8_v2", (address: u64, value: u8, bytes: usize);
    memory_set_words, "cuMemsetD32_v2", (address: u64, value: c_uint, count: usize);
    memory_set_async, "cuMemsetD8Async", (address: u64, value: u8, bytes: usize, stream: Opaque);
    memory_range, "cuMemGetAddressRange_v2", (base: *mut u64, bytes: *mut usize, address: u64);
    copy_to_device, "cuMemcpyHtoD_v2", (to: u64, from: *const c_void, bytes: usize);
    copy_to_host, "cuMemcpyDtoH_v2", (to: *mut c_void, from: u64, bytes: usize);
    copy_async, "cuMemcpyAsync", (to: u64, from: u64, bytes: usize, stream: Opaque);
    copy_device_async, "cuMemcpyDtoDAsync_v2", (to: u64, from: u64, bytes: usize, stream: Opaque);
    host_allocate, "cuMemHostAlloc", (address: *mut *mut c_void, bytes: usize, flags: c_uint);
    host_free, "cuMemFreeHost", (address: *mut c_void);
    host_device_pointer, "cuMemHostGetDevicePointer_v2", (address: *mut u64, host: *mut c_void, flags: c_uint);
    host_register, "cuMemHostRegister_v2", (address: *mut c_void, bytes: usize, flags: c_uint);
    host_unregister, "cuMemHostUnregister", (address: *mut c_void);
    pointer_attributes, "cuPointerGetAttributes", (count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: u64);
    pointer_attribute, "cuPointerGetAttribute", (value: *mut c_void, attribute: c_int, address: u64);
    ipc_handle, "cuIpcGetMemHandle", (handle: *mut IpcHandle, address: u64);
    ipc_open, "cuIpcOpenMemHandle_v2", (address: *mut u64, handle: IpcHandle, flags: c_uint);
    ipc_close, "cuIpcCloseMemHandle", (address: u64);
    module_load, "cuModuleLoadDataEx", (module: *mut Opaque, image: *const c_void, options: c_uint, names: *mut c_int, values: *mut *mut c_void);
    module_unload, "cuModuleUnload", (module: Opaque);
    module_function, "cuModuleGetFunction", (function: *mut Opaque, module: Opaque, name: *const c_char);
    function_attribute, "cuFuncGetAttribute", (value: *mut c_int, attribute: c_int, function: Opaque);
    function_load, "cuFuncLoad", (function: Opaque);
    launch, "cuLaunchKernel", (function: Opaque, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Opaque, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    launch_extended, "cuLaunchKernelEx", (configuration: *const LaunchConfiguration, function: Opaque, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    stream_create, "cuStreamCreate", (stream: *mut Opaque, flags: c_uint);
    stream_destroy, "cuStreamDestroy_v2", (stream: Opaque);
    stream_synchronize, "cuStreamSynchronize", (stream: Opaque);
    stream_wait, "cuStreamWaitEvent", (stream: Opaque, event: Opaque, flags: c_uint);
    stream_capturing, "cuStreamIsCapturing", (stream: Opaque, status: *mut c_int);
    stream_capture, "cuStreamGetCaptureInfo", (stream: Opaque, status: *mut c_int, id: *mut u64);
    capture_begin, "cuStreamBeginCapture_v2", (stream: Opaque, mode: c_int);
    capture_end, "cuStreamEndCapture", (stream: Opaque, graph: *mut Opaque);
    capture_mode, "cuThreadExchangeStreamCaptureMode", (mode: *mut c_int);
    graph_instantiate, "cuGraphInstantiateWithFlags", (executable: *mut Opaque, graph: Opaque, flags: u64);
    graph_launch, "cuGraphLaunch", (executable: Opaque, stream: Opaque);
    graph_destroy, "cuGraphDestroy", (graph: Opaque);
    graph_executable_destroy, "cuGraphExecDestroy", (executable: Opaque);
    event_create, "cuEventCreate", (event: *mut Opaque, flags: c_uint);
    event_record, "cuEventRecord", (event: Opaque, stream: Opaque);
    event_synchronize, "cuEventSynchronize", (event: Opaque);
    event_elapsed, "cuEventElapsedTime", (milliseconds: *mut f32, start: Opaque, end: Opaque);
    event_destroy, "cuEventDestroy_v2", (event: Opaque);
}

/// The name that machines without a toolkit have, too.
const LIBRARY: &str = "libcuda.so.1";

impl Driver {
    /// The driver of this machine, loaded and initialized once.
    pub fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(|| Driver::load(Path::new(LIBRARY))).as_ref().map_err(Clone::clone)
    }

    /// The same, `None` where nothing in this process can be a GPU's memory: `CUDA_VISIBLE_DEVICES` may be empty beside a
    /// program that has loaded the driver.
    pub fn with_gpu() -> Result<Option<&'static Driver>> {
        match Driver::get() {
            Ok(driver) => Ok(Some(driver)),
            Err(error) if error.means_no_gpu() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Loads that library and initializes it.
    pub fn load(path: &Path) -> Result<Driver> {
        // SAFETY: the driver's library may be loaded into any process, which is what it is for.
        let library = unsafe { Library::new(path) }.map_err(|error| CudaError::NoDriver(error.to_string()))?;
        let driver = Driver::of(library);
        // SAFETY: no preconditions.
        unsafe { driver.init(0) }?;
        Ok(driver)
    }

    /// The newest CUDA that it serves: 12030 is 12.3.
    pub fn version(&self) -> Result<u32> {
        let mut version = 0;
        // SAFETY: writes one number.
        unsafe { self.driver_version(&mut version) }?;
        Ok(version.max(0) as u32)
    }

    /// The error for a status, named as the driver names it.
    #[cold]
    fn error(&self, call: &'static str, status: i32) -> CudaError {
        let mut name = std::ptr::null();
        // SAFETY: writes one pointer, to a text that is never freed, or none.
        let known = self.error_name.is_some_and(|function| unsafe { function(status, &mut name) } == 0);
        let name = match known && !name.is_null() {
            // SAFETY: as above.
            true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            false => "unknown status".to_owned(),
        };
        CudaError::Status { call, status, name }
    }
}

/// Whether this process has loaded the driver, in which case it may have device memory. Costs little while no
/// library has been loaded since the last question.
pub fn is_loaded() -> bool {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static SEEN: AtomicU64 = AtomicU64::new(0);
    const LOADED: u64 = u64::MAX;
    let seen = SEEN.load(Relaxed);
    if seen == LOADED {
        return true;
    }
    let now = libraries_loaded();
    if seen == now {
        return false;
    }
    // SAFETY: RTLD_NOLOAD loads nothing.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    SEEN.store(if handle.is_null() { now } else { LOADED }, Relaxed);
    !handle.is_null()
}

/// How many libraries this process has ever loaded.
fn libraries_loaded() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
        // SAFETY: the loader gives its own information, and `count` is the u64 below.
        unsafe { *count.cast::<u64>() = (*info).dlpi_adds };
        1 // the same in every entry
    }
    let mut count = 0u64;
    // SAFETY: the callback is called before this returns, with the pointer to `count`.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}
