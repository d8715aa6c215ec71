//! The directories that are watched, by the kernel's number for each watch. Numbers are not used
//! again within the life of a helper.

use std::collections::HashMap;

/// The longest path the kernel takes.
const LONGEST: usize = 4096;

#[derive(Debug, Default)]
struct Node {
    /// The directory it is in; `None` for the top.
    parent: Option<i32>,
    name: Vec<u8>,
    children: HashMap<Vec<u8>, i32>,
}

/// Where each watched directory is, as far as events were read.
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

    /// The path of a name in a directory, relative to the top; nothing if no call could name it.
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

    /// Makes the top.
    pub(super) fn plant(&mut self, watch: i32) {
        self.nodes.insert(watch, Node::default());
    }

    /// Puts a directory, new or known, into another. False if it would be in itself: events that
    /// are still to be read will say how that is possible.
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

    /// Forgets a directory and all in it; the watches that are no longer wanted.
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
