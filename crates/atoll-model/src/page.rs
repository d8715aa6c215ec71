//! Pages of a list that is sorted newest first.

/// Position in a list: creation time in microseconds since 1970, and id.
pub type Cursor = (i64, String);

/// Which page of a list to return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Maximum number of items.
    pub limit: u32,
    /// Return only items after this position. `None`: the first page.
    pub cursor: Option<Cursor>,
}

impl PageRequest {
    /// The same page with one more item, which shows whether there is a next page.
    #[must_use]
    pub fn with_lookahead(&self) -> Self {
        Self {
            limit: self.limit + 1,
            cursor: self.cursor.clone(),
        }
    }

    /// Whether an item at this position comes after the cursor.
    pub fn includes(&self, position: &Cursor) -> bool {
        self.cursor.as_ref().is_none_or(|cursor| position < cursor)
    }
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The items, newest first.
    pub items: Vec<T>,
    /// Cursor of the next page. `None` on the last page.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// Builds a page from sorted items that were read [`with_lookahead`](PageRequest::with_lookahead).
    pub fn from_lookahead(
        mut items: Vec<T>,
        request: &PageRequest,
        position: impl Fn(&T) -> Cursor,
    ) -> Self {
        let has_next = items.len() > request.limit as usize;
        items.truncate(request.limit as usize);
        let next = items.last().filter(|_| has_next).map(position);
        Self { items, next }
    }

    /// Builds a page from all items of a list in any order.
    pub fn from_unsorted(
        items: Vec<T>,
        request: &PageRequest,
        position: impl Fn(&T) -> Cursor,
    ) -> Self {
        let items = items.into_iter().map(|item| (position(&item), item));
        let mut rest: Vec<_> = items
            .filter(|(position, _)| request.includes(position))
            .collect();
        rest.sort_by(|(one, _), (other, _)| other.cmp(one));
        rest.truncate(request.limit as usize + 1);
        let items = rest.into_iter().map(|(_, item)| item).collect();
        Self::from_lookahead(items, request, position)
    }

    /// Converts each item.
    #[must_use]
    pub fn map<V>(self, convert: impl FnMut(T) -> V) -> Page<V> {
        Page {
            items: self.items.into_iter().map(convert).collect(),
            next: self.next,
        }
    }
}
