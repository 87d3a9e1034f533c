// An embedded store's folder as the source of a move. It is opened as a node opens it: one process at a time, the journal brought into the database
// first. Nothing else of it is changed but a name that tells it apart. State: the open store.

import { BrokerError } from "../../broker/errors.ts";
import type { MoveSource } from "../moved.ts";
import { readCheckpointState } from "./checkpoint-state.ts";
import type { EmbeddedOptions } from "./embedded-options.ts";
import { openEngine } from "./engine.ts";
import { hasData, nameOf } from "./export-look.ts";
import { rowsOfStep, totalOf } from "./export-steps.ts";

type Engine = Awaited<ReturnType<typeof openEngine>>;

const NEVER_MS = 2 ** 31 - 1;

/**
 * Opens the folder `path`. Throws `unavailable` with a sentence when there is no data, another process uses it or it cannot be written, `internal`
 * when it cannot be read.
 */
export async function openMoveSource(
  options: Omit<
    EmbeddedOptions,
    "publisher" | "durability" | "retentionS" | "maxChannelMessages"
  >,
): Promise<MoveSource> {
  if (!hasData(options.path))
    throw new BrokerError("unavailable", {
      message: `There is no data of an embedded store in ${options.path}; migrate.from is what store.path was`,
    });
  const engine = await openEngine({
    ...options,
    ...{ durability: "disk", retentionS: 0, maxChannelMessages: 0 },
    sweepIntervalMs: NEVER_MS,
    publisher: { publish() {} }, // nothing happens while it is open
  });
  try {
    return await sourceOf(engine);
  } catch (error) {
    await engine.close();
    throw error;
  }
}

async function sourceOf(engine: Engine): Promise<MoveSource> {
  const { tables } = engine;
  const id = await nameOf(tables);
  let closing: Promise<void> | undefined;
  return {
    id,
    lastMessageId: readCheckpointState(tables)?.lastMessageId ?? 0,
    total: (step) => totalOf(tables, step),
    rows: (step, place) => rowsOfStep(tables, step, place),
    close() {
      closing ??= engine.close();
      return closing;
    },
  };
}
