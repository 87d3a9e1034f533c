// Lists that usually have one item.

/**
 * Adds an item, possibly in place. Only the returned list may be used afterwards. A push to an
 * empty array is avoided, because it would allocate memory for 17 items.
 */
export function withItem<Item>(list: readonly Item[], item: Item): readonly Item[] {
  if (list.length === 0) return [item];
  (list as Item[]).push(item); // this function has created the list
  return list;
}
