// Splits a long list into shorter lists.

/** Yields the items in arrays of `length` items. The last array may be shorter. */
export function* piecesOf<Item>(items: Iterable<Item>, length: number): Generator<readonly Item[]> {
  let piece: Item[] = [];
  for (const item of items)
    if (piece.push(item) === length) {
      yield piece;
      piece = [];
    }
  if (piece.length > 0) yield piece;
}
