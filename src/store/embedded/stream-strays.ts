// Rows of an active stream without its message: a checkpoint of an older build failed half way and the process died. The WAL has all of that
// stream, for it is let go of only when a whole checkpoint is done; so the rows go, and the replay brings the stream back. No state.

import type { Tables } from "./database.ts";
import { commit } from "./engine/tables.ts";
import { partRange } from "./stream-rows.ts";

/** To be called before the WAL is replayed. Throws `unavailable`. */
export async function removeStrays(
  tables: Tables,
  onProblem: (error: Error, what: string) => void,
): Promise<void> {
  const { log, streamsActive, streamParts } = tables;
  const strays = [...streamsActive.getKeys({})].filter(
    (key) => !log.doesExist(key),
  );
  if (strays.length === 0) return;
  const parts = strays.flatMap((key) => [
    ...streamParts.getKeys(partRange(key)),
  ]);
  await commit(tables, () => {
    for (const key of strays) void streamsActive.remove(key);
    for (const key of parts) void streamParts.remove(key);
  });
  const message = `${strays.length} active streams stood without their message; the journal has them`;
  onProblem(new Error(message), "Recovery found something it could not use");
}
