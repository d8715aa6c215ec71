//! Every decision about isolation, readable as a snapshot.
