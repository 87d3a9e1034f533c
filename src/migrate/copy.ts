// One attempt at a move: copies the rows of each table page by page, stores a watermark in Redis
// after each page, then reads both sides once more and compares them. The next attempt resumes at
// the watermark, or from the beginning after a comparison found differences. State: in Redis only.

import { BrokerError } from "../broker/errors.ts";
import type { MoveSource } from "../store/embedded/export.ts";
import {
  bytesOf,
  type MoveContext,
  MoveCounts,
  type MovedCount,
  type MoveRow,
  type MoveTarget,
} from "./facts.ts";
import type { MoveProgress, MoveRecord, RecordChange } from "./record.ts";
import { type MoveTable, moveTables } from "./tables.ts";

/** The step after those that copy. */
const VERIFY_STEP = "verify";
const SAVE_MS = 1000;
const MAX_TOLD = 10;
/** Bounds of a page: what is written or compared at once. */
const MAX_ROWS = 500;
const MAX_BYTES = 1_048_576;

export interface CopyParts {
  readonly source: MoveSource;
  readonly target: MoveTarget;
  readonly context: MoveContext;
  readonly record: Pick<MoveRecord, "watermark" | "differing" | "beganAtMs">;
  readonly save: (change: RecordChange) => Promise<void>;
  /** Throws when the attempt must end. */
  readonly assertGoing: () => void;
  readonly onProgress: (progress: MoveProgress) => void;
  /** Both sides are equal; how much of what Redis holds. */
  readonly onCompared: (counts: readonly MovedCount[]) => void;
}

/**
 * After everything was copied again Redis still differs from the folder in the same keys: no retry
 * helps.
 */
export class MoveStuck extends BrokerError {
  /** Identifies the move (see `MoveRecord`). */
  readonly beganAtMs: number;

  constructor(differing: string, beganAtMs: number) {
    super("internal", {
      message: `What is in Redis is not what is in the folder, and moving everything again did not change that. Empty redis.prefix and begin again. It is: ${differing}`,
    });
    this.name = "MoveStuck";
    this.beganAtMs = beganAtMs;
  }
}

/**
 * Resolves when everything is in Redis and was compared. Throws BrokerError with an error message,
 * MoveStuck where no retry helps.
 */
export async function copyAll(parts: CopyParts): Promise<void> {
  const { record, save } = parts;
  const tables = moveTables(parts.source, parts.context);
  await copy(parts, tables);
  const { differing, counts } = await compare(parts, tables);
  if (differing === "") return parts.onCompared(counts);
  await save({ watermark: undefined, rows: 0, differing });
  if (record.differing === differing)
    throw new MoveStuck(differing, record.beganAtMs);
  throw new BrokerError("internal", {
    message: `What is in Redis is not what is in the folder; the next try moves everything again. It is: ${differing}`,
  });
}

async function copy(
  { target, record, save, assertGoing, onProgress }: CopyParts,
  tables: readonly MoveTable[],
): Promise<void> {
  const first = tables.findIndex(
    ({ name }) => name === record.watermark?.table,
  );
  const watermark = first < 0 ? undefined : record.watermark;
  let progress: MoveProgress = { step: "", done: 0, total: 0 };
  let writing: Promise<void> = Promise.resolve();
  const advance = async (done: number, at?: MoveRecord["watermark"]) => {
    progress = { ...progress, done };
    const { step, total } = progress;
    await save({ step, rows: done, total, ...(at && { watermark: at }) });
    onProgress(progress);
  };
  const write = async (table: string, page: readonly MoveRow[]) => {
    await target.write(factsOf(page));
    const done = progress.done + page.length;
    await advance(done, { table, at: page.at(-1)?.at ?? "", rows: done });
  };
  try {
    for (const { name, step, rows } of tables.slice(Math.max(first, 0))) {
      const isResumed = name === watermark?.table;
      if (step !== progress.step) {
        await writing;
        const total = totalOf(tables.filter((one) => one.step === step));
        progress = { step, done: 0, total };
        await advance(isResumed ? watermark.rows : 0);
      }
      // The next page is read while this one is written, and written after it.
      for (const page of pagesOf(rows(isResumed ? watermark.at : ""))) {
        await writing;
        assertGoing();
        writing = write(name, page);
        writing.catch(() => undefined); // awaited above or below
      }
    }
    await writing;
  } finally {
    await writing.catch(() => undefined); // nothing is in flight when the lease is released
  }
}

/**
 * `differing` names the first few differences and counts the others; "": none. Equal differences
 * give equal text.
 */
async function compare(
  { target, save, assertGoing, onProgress }: CopyParts,
  tables: readonly MoveTable[],
): Promise<{
  readonly differing: string;
  readonly counts: readonly MovedCount[];
}> {
  const counts = new MoveCounts(target);
  const found = new Set<string>();
  let differences = 0;
  const note = (words: readonly string[]) => {
    differences += words.length;
    for (const one of words) if (found.size < MAX_TOLD) found.add(one);
  };
  const [step, total] = [VERIFY_STEP, totalOf(tables)];
  let done = 0;
  let savedAtMs = Number.NEGATIVE_INFINITY;
  const advance = async (rows: number) => {
    done += rows;
    onProgress({ step, done, total });
    if (performance.now() - savedAtMs < SAVE_MS) return;
    savedAtMs = performance.now();
    await save({ step, rows: done, total });
  };
  await advance(0);
  for (const table of tables)
    for (const page of pagesOf(table.rows(""))) {
      assertGoing();
      const [words] = await Promise.all([
        target.differing(factsOf(page)),
        counts.take(page),
      ]);
      note(words);
      await advance(page.length);
    }
  note(counts.differences());
  const more = differences - found.size;
  const words = more > 0 ? [...found, `and ${more} more`] : [...found];
  return { counts: counts.found(), differing: words.join("; ") };
}

/**
 * Rows in groups that are bounded in number and bytes.
 */
function* pagesOf(rows: Iterable<MoveRow>): Generator<readonly MoveRow[]> {
  let page: MoveRow[] = [];
  let bytes = 0;
  for (const row of rows) {
    page.push(row);
    for (const one of row.facts ?? []) bytes += bytesOf(one);
    if (page.length < MAX_ROWS && bytes < MAX_BYTES) continue;
    yield page;
    page = [];
    bytes = 0;
  }
  if (page.length > 0) yield page;
}

function factsOf(page: readonly MoveRow[]) {
  return page.flatMap(({ facts = [] }) => facts);
}

function totalOf(tables: readonly MoveTable[]): number {
  return tables.reduce((sum, { total }) => sum + total, 0);
}
