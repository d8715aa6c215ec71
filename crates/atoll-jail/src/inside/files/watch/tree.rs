//! Tree of watched directories, by watch descriptor. inotify does not reuse descriptors within the life of a helper.

use std::collections::HashMap;

/// Maximum length of a path in the kernel.
const LONGEST: usize = 4096;

#[derive(Debug, Default)]
struct Node {
    /// Parent directory; `None` for the top.
    parent: Option<i32>,
    name: Vec<u8>,
    children: HashMap<Vec<u8>, i32>,
}

/// Path of each watched directory, as of the events that were read.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: HashMap<i32, Node>,
}

impl Tree {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn has(&self, watch: i32) -> bool {
        self.nodes.contains_key(&watch)
    }

    pub(super) fn child(&self, parent: i32, name: &[u8]) -> Option<i32> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    /// Path of a name in a directory, relative to the top; `None` if it is too long for the kernel.
    pub(super) fn path(&self, watch: i32, name: &[u8]) -> Option<Vec<u8>> {
        let mut parts = vec![name];
        let (mut length, mut next) = (name.len(), self.nodes.get(&watch)?);
        while let Some(parent) = next.parent {
            length += next.name.len() + 1;
            if length > LONGEST {
                return None;
            }
            parts.push(&next.name);
            next = self.nodes.get(&parent)?;
        }
        parts.retain(|part| !part.is_empty());
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    /// Adds the top.
    pub(super) fn plant(&mut self, watch: i32) {
        self.nodes.insert(watch, Node::default());
    }

    /// Moves a new or known directory into another. False if that would be a cycle, which later events resolve.
    pub(super) fn put(&mut self, watch: i32, parent: i32, name: &[u8]) -> bool {
        let mut above = Some(parent);
        while let Some(next) = above {
            if next == watch {
                return false;
            }
            above = self.nodes.get(&next).and_then(|node| node.parent);
        }
        if !self.has(parent) {
            return false;
        }
        self.detach(watch);
        let node = self.nodes.entry(watch).or_default();
        node.parent = Some(parent);
        name.clone_into(&mut node.name);
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children.insert(name.to_vec(), watch);
        }
        true
    }

    fn detach(&mut self, watch: i32) {
        let Some(node) = self.nodes.get_mut(&watch) else {
            return;
        };
        let (parent, name) = (node.parent.take(), std::mem::take(&mut node.name));
        let children = parent.and_then(|parent| self.nodes.get_mut(&parent));
        if let Some(Node { children, .. }) = children
            && children.get(&name) == Some(&watch)
        {
            children.remove(&name);
        }
    }

    /// Removes a directory and everything in it; returns their watches.
    pub(super) fn cut(&mut self, watch: i32) -> Vec<i32> {
        self.detach(watch);
        let (mut gone, mut next) = (Vec::new(), vec![watch]);
        while let Some(watch) = next.pop() {
            if let Some(node) = self.nodes.remove(&watch) {
                next.extend(node.children.values());
                gone.push(watch);
            }
        }
        gone
    }
}
