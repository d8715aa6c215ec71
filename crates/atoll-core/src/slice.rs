//! Lists that are given in parts.

use atoll_store::Page;

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Slice<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next one begins, if there is more.
    pub next: Option<(i64, String)>,
}

impl<T> Slice<T> {
    /// Of what was found when one more than fits was looked for.
    pub(crate) fn new(mut items: Vec<T>, page: &Page, place: impl Fn(&T) -> (i64, String)) -> Self {
        let more = items.len() > page.limit as usize;
        items.truncate(page.limit as usize);
        let next = items.last().filter(|_| more).map(place);
        Self { items, next }
    }

    /// Of everything there is, in whatever order: newest first.
    pub fn of_all(all: Vec<T>, page: &Page, place: impl Fn(&T) -> (i64, String)) -> Self {
        let before = |place: &(i64, String)| page.before.as_ref().is_none_or(|end| place < end);
        let all = all.into_iter().map(|item| (place(&item), item));
        let mut left: Vec<_> = all.filter(|(place, _)| before(place)).collect();
        left.sort_by(|(one, _), (two, _)| two.cmp(one));
        left.truncate(page.limit as usize + 1);
        let items = left.into_iter().map(|(_, item)| item).collect();
        Self::new(items, page, place)
    }

    /// The same part, with everything on it seen in another way.
    #[must_use]
    pub fn map<V>(self, view: impl FnMut(T) -> V) -> Slice<V> {
        Slice {
            items: self.items.into_iter().map(view).collect(),
            next: self.next,
        }
    }
}
