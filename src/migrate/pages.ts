// Rows of a source put together to pages that are dealt with at once: bounded in number and bytes, whatever the source holds. Pure.

import type { Moved, MovedRow } from "../store/moved.ts";

const MAX_ROWS = 500;
const MAX_BYTES = 1_048_576;

/** At least one row; the place of the last one is that of the page. */
export type Page = readonly MovedRow[];

export function* pagesOf(rows: Iterable<MovedRow>): Generator<Page> {
  let page: MovedRow[] = [];
  let bytes = 0;
  for (const row of rows) {
    page.push(row);
    bytes += bytesOf(row.moved);
    if (page.length < MAX_ROWS && bytes < MAX_BYTES) continue;
    yield page;
    page = [];
    bytes = 0;
  }
  if (page.length > 0) yield page;
}

/** About; small ones do not matter. */
function bytesOf(moved: Moved): number {
  if (moved.kind === "stream") {
    const { text, notes, startData, endData = "" } = moved.snapshot;
    let units = text.length + startData.length + endData.length;
    for (const { data } of notes) units += data.length;
    return units * 2 + moved.offsets.length * 8;
  }
  return "message" in moved ? moved.message.payload.length : 0;
}
