//! Mutex access without poisoning.

pub(crate) use atoll_model::lock;
