// What a move from an embedded folder to a Redis is made of, from plain values of the configuration. State: none.

import type { RedisSettings } from "../redis/client.ts";
import { RedisLink } from "../redis/link.ts";
import { openMoveSource } from "../store/embedded/export.ts";
import { lookInto } from "../store/embedded/export-look.ts";
import { Migration, type MigrationParts } from "./migration.ts";

type EmbeddedSettings = Omit<
  Parameters<typeof openMoveSource>[0],
  "path" | "clock" | "onProblem" | "onLost"
>;

export interface MoveSettings {
  /** The embedded store's folder; "": nothing is moved, another's move is waited for. */
  readonly from: string;
  readonly redis: RedisSettings;
  /** See `Watch` and `Waiting`. */
  readonly deadAfterMs: number;
  readonly abandonedAfterMs: number;
  /** How the folder is read, and what is still of use in it. */
  readonly store: EmbeddedSettings & { readonly retentionS: number };
}

export interface MoveParts
  extends Pick<
    MigrationParts,
    "onProgress" | "onWaiting" | "onCompared" | "onFailure"
  > {
  /** Unix milliseconds. */
  readonly clock: () => number;
  /** Hears of failures that no caller is told of. */
  readonly onProblem: (error: unknown, what: string) => void;
  /** Another process has taken the folder; must end this one at once. */
  readonly onLost: (error: unknown) => void;
}

/** Nothing is opened yet. */
export function createMigration(
  { from, redis, store, ...settings }: MoveSettings,
  { onProblem, onLost, ...parts }: MoveParts,
): Migration {
  const { dedupeWindowS, retentionS } = store;
  const { clock } = parts;
  return new Migration({
    ...{ ...parts, ...settings, dedupeWindowS, retentionS },
    connect: () =>
      new RedisLink(redis, {
        ...{ name: "jindou-migrate", onProblem },
      }),
    folder:
      from === ""
        ? undefined
        : {
            open: () =>
              openMoveSource({
                ...{ ...store, path: from, clock, onProblem, onLost },
              }),
            look: () => lookInto(from),
          },
  });
}
