// One attempt at a move: copies the rows of each table page by page, stores a watermark in Redis
// after each page, then reads both sides once more and compares them. The next attempt resumes at
// the watermark, or from the beginning after a comparison found differences. State: in Redis only.

import { BrokerError } from "../broker/errors.ts";
import type { MoveSource } from "../store/embedded/export.ts";
import {
  bytesOf,
  type MoveContext,
  MoveCounts,
  type MoveRow,
  type MoveTarget,
  type RowCount,
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

export interface CopyPorts {
  readonly source: MoveSource;
  readonly target: MoveTarget;
  readonly context: MoveContext;
  readonly record: Pick<MoveRecord, "watermark" | "differing" | "beganAtMs">;
  readonly save: (change: RecordChange) => Promise<void>;
  /** Throws when the attempt must end. */
  readonly assertGoing: () => void;
  readonly onProgress: (progress: MoveProgress) => void;
  /** Both sides are equal; how much of what Redis holds. */
  readonly onCompared: (counts: readonly RowCount[]) => void;
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
export async function copyAll(parts: CopyPorts): Promise<void> {
  const { record, save } = parts;
  const tables = moveTables(parts.source, parts.context);
  await copy(parts, tables);
  const { differing, counts } = await compare(parts, tables);
  if (differing === "") return parts.onCompared(counts);
  await save({ watermark: undefined, rows: 0, differing });
  if (record.differing === differing) throw new MoveStuck(differing, record.beganAtMs);
  throw new BrokerError("internal", {
    message: `What is in Redis is not what is in the folder; the next try moves everything again. It is: ${differing}`,
  });
}

async function copy(parts: CopyPorts, tables: readonly MoveTable[]): Promise<void> {
  const { target, record, save, onProgress } = parts;
  const { watermark: from } = record;
  let step = tables.find(({ name }) => name === from?.table)?.step;
  let done = from?.rows ?? 0;
  await eachPage(parts, pagesOf(tables, from), async ([table, rows]) => {
    await target.write(factsOf(rows));
    if (table.step !== step) done = 0;
    step = table.step;
    done += rows.length;
    const total = totalOf(tables.filter((one) => one.step === step));
    const at = rows.at(-1)?.at ?? "";
    const watermark = { table: table.name, at, rows: done };
    await save({ step, rows: done, total, watermark });
    onProgress({ step, done, total });
  });
}

/**
 * `differing` names the first few differences and counts the others; "": none. Equal differences
 * give equal text.
 */
async function compare(
  parts: CopyPorts,
  tables: readonly MoveTable[],
): Promise<{
  readonly differing: string;
  readonly counts: readonly RowCount[];
}> {
  const { target, save, onProgress } = parts;
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
  await eachPage(parts, pagesOf(tables), async ([, rows]) => {
    const [words] = await Promise.all([target.differing(factsOf(rows)), counts.take(rows)]);
    note(words);
    await advance(rows.length);
  });
  note(counts.differences());
  const more = differences - found.size;
  const words = more > 0 ? [...found, `and ${more} more`] : [...found];
  return { counts: counts.found(), differing: words.join("; ") };
}

/** What is written or compared at once. */
type Page = readonly [table: MoveTable, rows: readonly MoveRow[]];

/** Does the work of one page after the other; the next one is read meanwhile. */
async function eachPage(
  { assertGoing }: Pick<CopyPorts, "assertGoing">,
  pages: Iterable<Page>,
  work: (page: Page) => Promise<void>,
): Promise<void> {
  let working: Promise<void> = Promise.resolve();
  try {
    for (const page of pages) {
      await working;
      assertGoing();
      working = work(page);
      working.catch(() => undefined); // awaited above or below
    }
    await working;
  } finally {
    await working.catch(() => undefined); // nothing is in flight when the lease is released
  }
}

/** The rows after the watermark, table by table, in groups bounded in number and bytes. */
function* pagesOf(
  tables: readonly MoveTable[],
  watermark?: MoveRecord["watermark"],
): Generator<Page> {
  const first = tables.findIndex(({ name }) => name === watermark?.table);
  for (const table of tables.slice(Math.max(first, 0))) {
    let rows: MoveRow[] = [];
    let bytes = 0;
    for (const row of table.rows(table.name === watermark?.table ? watermark.at : "")) {
      rows.push(row);
      for (const one of row.facts ?? []) bytes += bytesOf(one);
      if (rows.length < MAX_ROWS && bytes < MAX_BYTES) continue;
      yield [table, rows];
      rows = [];
      bytes = 0;
    }
    if (rows.length > 0) yield [table, rows];
  }
}

function factsOf(page: readonly MoveRow[]) {
  return page.flatMap(({ facts = [] }) => facts);
}

function totalOf(tables: readonly MoveTable[]): number {
  return tables.reduce((sum, { total }) => sum + total, 0);
}
