// Compares what was moved: everything is read once more on both sides, row by row and in numbers. State: none; how far it is, is kept in Redis now and
// then for those who wait.

import { MOVE_STEPS, type MoveSource } from "../store/moved.ts";
import { MoveCounts, type MovedCount } from "../store/redis/import/counts.ts";
import type { ImportContext } from "../store/redis/import/facts.ts";
import type { MoveTarget } from "../store/redis/import/import.ts";
import { differencesOf } from "../store/redis/import/import.ts";
import { pagesOf } from "./pages.ts";
import {
  type MoveProgress,
  type RecordWriter,
  saveRecord,
  VERIFY_STEP,
} from "./record.ts";

const SAVE_MS = 1000;
const MAX_TOLD = 10;

export interface CompareParts extends RecordWriter {
  readonly source: MoveSource;
  readonly target: MoveTarget;
  readonly context: () => ImportContext;
  /** Throws when it is to end. */
  readonly assertGoing: () => void;
  readonly onProgress: (progress: MoveProgress) => void;
}

export interface Compared {
  readonly counts: readonly MovedCount[];
  /** The first few differences in words, and how many more there are; "": none. The same differences have the same words. */
  readonly differing: string;
}

/** Throws as the link does and as `assertGoing`. */
export async function compare(parts: CompareParts): Promise<Compared> {
  const { source, target, context } = parts;
  const counts = new MoveCounts(target);
  const found: string[] = [];
  let differences = 0;
  const note = (words: readonly string[]) => {
    differences += words.length;
    for (const one of words)
      if (found.length < MAX_TOLD && !found.includes(one)) found.push(one);
  };
  const advance = await comparison(parts);
  for (const step of MOVE_STEPS)
    for (const page of pagesOf(source.rows(step))) {
      parts.assertGoing();
      const rows = page.map(({ moved }) => moved);
      const now = context();
      const [words] = await Promise.all([
        differencesOf(target, now, rows),
        counts.take(rows, now.nowMs),
      ]);
      note(words);
      await advance(page.length);
    }
  note(counts.differences());
  const more = differences - found.length;
  const words = more > 0 ? [...found, `and ${more} more`] : found;
  return { counts: counts.found(), differing: words.join("; ") };
}

/** Tells how far it is, to be called with each number of rows. */
async function comparison(
  parts: CompareParts,
): Promise<(rows: number) => Promise<void>> {
  const { source, onProgress } = parts;
  const step = VERIFY_STEP;
  const totals = MOVE_STEPS.map((one) => source.total(one));
  const total = totals.reduce((sum, count) => sum + count, 0);
  let done = 0;
  let savedAtMs = performance.now();
  await saveRecord(parts, { step, compared: 0, total });
  onProgress({ step, done, total });
  return async (rows) => {
    done += rows;
    onProgress({ step, done, total });
    if (performance.now() - savedAtMs < SAVE_MS) return;
    savedAtMs = performance.now();
    await saveRecord(parts, { compared: done });
  };
}
