//! The drawn machine: [`text`] for a terminal, [`svg`] as a picture, [`html`] as a page; [`layout`] decides where
//! things go.

pub mod html;
pub mod layout;
pub mod nccl;
pub mod svg;
pub mod text;
