//! Payloads that were decoded lately.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A payload: the address of its pack, and its entry there.
pub(super) type Key = (usize, u32);

/// Payloads of at most so many bytes together; those used longest ago go first.
pub(super) struct Cache {
    most: usize,
    bytes: usize,
    now: u64,
    payloads: HashMap<Key, (Arc<Vec<u8>>, u64)>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, Key>,
}

impl Cache {
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: 0, now: 0, payloads: HashMap::new(), order: BTreeMap::new() }
    }

    pub(super) fn get(&mut self, key: Key) -> Option<Arc<Vec<u8>>> {
        let (payload, used) = self.payloads.get_mut(&key)?;
        self.now += 1;
        self.order.remove(used);
        self.order.insert(self.now, key);
        *used = self.now;
        Some(Arc::clone(payload))
    }

    /// Keeps a payload, unless it alone is more than there is room for.
    pub(super) fn put(&mut self, key: Key, payload: Arc<Vec<u8>>) {
        if payload.len() > self.most {
            return;
        }
        self.now += 1;
        self.bytes += payload.len();
        self.order.insert(self.now, key);
        if let Some((old, used)) = self.payloads.insert(key, (payload, self.now)) {
            self.bytes -= old.len();
            self.order.remove(&used);
        }
        while self.bytes > self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            let freed = self.payloads.remove(&oldest).map_or(0, |(old, _)| old.len());
            self.bytes -= freed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut cache = Cache::new(10);
        let payload = |bytes: usize| Arc::new(vec![0_u8; bytes]);
        let key = |entry| (0, entry);
        for entry in 0..3 {
            cache.put(key(entry), payload(3));
        }
        assert!(cache.get(key(0)).is_some());
        cache.put(key(3), payload(4));
        let held: Vec<bool> = (0..4).map(|entry| cache.get(key(entry)).is_some()).collect();
        assert_eq!(held, [true, false, true, true]);
        cache.put(key(3), payload(1));
        cache.put(key(9), payload(11));
        assert!(cache.get(key(9)).is_none());
        assert_eq!((cache.bytes, cache.payloads.len(), cache.order.len()), (7, 3, 3));
    }
}
