// One attempt at a move: the rows of each table are copied page by page, each page's place is kept in Redis behind it, then everything is read once more
// on both sides and compared. Whatever ends it, the next attempt goes on from the last place; where something differs, from the beginning.
// State: none but Redis'.

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

/** Follows the steps that copy. */
const VERIFY_STEP = "verify";
const SAVE_MS = 1000;
const MAX_TOLD = 10;
/** Of a page, which is dealt with at once. */
const MAX_ROWS = 500;
const MAX_BYTES = 1_048_576;

export interface CopyParts {
  readonly source: MoveSource;
  readonly target: MoveTarget;
  readonly context: MoveContext;
  readonly record: Pick<MoveRecord, "place" | "differing" | "beganAtMs">;
  readonly save: (change: RecordChange) => Promise<void>;
  /** Throws when it is to end. */
  readonly assertGoing: () => void;
  readonly onProgress: (progress: MoveProgress) => void;
  /** Everything is there: how much of what. */
  readonly onCompared: (counts: readonly MovedCount[]) => void;
}

/** Redis differs from the folder in what it differed in before everything was moved once more: no further try can help. */
export class MoveStuck extends BrokerError {
  /** Of the record of the move. */
  readonly beganAtMs: number;

  constructor(differing: string, beganAtMs: number) {
    super("internal", {
      message: `What is in Redis is not what is in the folder, and moving everything again did not change that. Empty redis.prefix and begin again. It is: ${differing}`,
    });
    this.name = "MoveStuck";
    this.beganAtMs = beganAtMs;
  }
}

/** Resolves when everything is in Redis and was compared. Throws BrokerError with a sentence, MoveStuck where no further try can help. */
export async function copyAll(parts: CopyParts): Promise<void> {
  const { record, save } = parts;
  const tables = moveTables(parts.source, parts.context);
  await copy(parts, tables);
  const { differing, counts } = await compare(parts, tables);
  if (differing === "") return parts.onCompared(counts);
  await save({ place: undefined, rows: 0, differing });
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
  const first = tables.findIndex(({ name }) => name === record.place?.table);
  const place = first < 0 ? undefined : record.place;
  let progress: MoveProgress = { step: "", done: 0, total: 0 };
  let writing: Promise<void> = Promise.resolve();
  const advance = async (done: number, at?: MoveRecord["place"]) => {
    progress = { ...progress, done };
    const { step, total } = progress;
    await save({ step, rows: done, total, ...(at && { place: at }) });
    onProgress(progress);
  };
  const write = async (table: string, page: readonly MoveRow[]) => {
    await target.write(factsOf(page));
    const done = progress.done + page.length;
    await advance(done, { table, at: page.at(-1)?.at ?? "", rows: done });
  };
  for (const { name, step, rows } of tables.slice(Math.max(first, 0))) {
    const isResumed = name === place?.table;
    if (step !== progress.step) {
      await writing;
      const total = totalOf(tables.filter((one) => one.step === step));
      progress = { step, done: 0, total };
      await advance(isResumed ? place.rows : 0);
    }
    // The next page is read while this one is on its way; it is not sent before this one is there.
    for (const page of pagesOf(rows(isResumed ? place.at : ""))) {
      await writing;
      assertGoing();
      writing = write(name, page);
      writing.catch(() => undefined); // awaited above or below
    }
  }
  await writing;
}

/** `differing`: the first few differences in words, and how many more there are; "": none. The same differences have the same words. */
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

/** Bounded in rows and bytes, whatever the source holds; at least one row. The place of the last one is that of the page. */
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
