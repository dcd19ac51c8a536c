//! Logarithms and their kin without the C library's libm, whose loading would cost every start of prun 0.08 ms.
//! `clippy.toml` keeps the methods of `f64` that need it away.

/// The natural logarithm.
pub(crate) fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// The logarithm to base 10.
pub(crate) fn log10(x: f64) -> f64 {
    libm::log10(x)
}

/// e to the power `x`.
pub(crate) fn exp(x: f64) -> f64 {
    libm::exp(x)
}

/// `base` to the power `x`.
pub(crate) fn pow(base: f64, x: f64) -> f64 {
    libm::pow(base, x)
}

/// The cosine.
#[cfg(test)]
pub(crate) fn cos(x: f64) -> f64 {
    libm::cos(x)
}
