// Finishes commands that nodes which are gone left half done, some at once. A server that gives no answer is asked once in a sweep, however many
// commands need it: the others' recipients do not wait for it. No state beyond the sweep.

import { BrokerError } from "../../broker/errors.ts";
import { Line } from "../../lib/line.ts";
import { isUnanswered } from "../../redis/errors.ts";
import type { CommandPath } from "./commands.ts";
import { FINISHING, takeUnfinished } from "./inbox-claims.ts";
import type { Command } from "./inbox-record.ts";
import type { RedisStoreParts } from "./parts.ts";

/** A command begun or taken by a sweep so long ago and not finished is nobody's: no call takes so long. */
const STALE_MS = 60_000;
/** Half of the groups of recipients that may be in flight: the rest is for commands of now. */
const AT_ONCE = 8;

interface SweepParts {
  readonly isStopped: () => boolean;
  readonly finish: (command: Command, path: CommandPath) => Promise<void>;
}

/** What cannot be finished is told to `onProblem` and left to a later sweep. */
export async function sweepCommands(
  parts: RedisStoreParts,
  { isStopped, finish }: SweepParts,
): Promise<void> {
  const { link, onProblem } = parts;
  const nowMs = parts.clock();
  const untilMs = nowMs - STALE_MS;
  const commands = await takeUnfinished(parts, { untilMs, nowMs });
  const path = pathOf(parts);
  const line = new Line(AT_ONCE);
  let isAwayTold = false;
  const tell = (error: unknown): void => {
    const isAway = !isInternal(error);
    if (!isAway || !isAwayTold) onProblem(error, FINISHING); // the others go on
    isAwayTold ||= isAway;
  };
  const finished = commands.map((command) =>
    line.run(async () => {
      if (isStopped() || !link.isUp) return;
      await finish(command, path).catch(tell);
    }),
  );
  await Promise.all(finished);
}

/** Refuses at once what would be asked of a server that gave no answer before, and a wait for replicas where one failed. */
function pathOf({ link, written }: RedisStoreParts): CommandPath {
  const silent = new Set<unknown>();
  const ask = async (key: unknown, send: () => Promise<unknown>) => {
    const server = link.primaryOf(String(key));
    if (silent.has(server)) throw new BrokerError("unavailable");
    try {
      return await send();
    } catch (error) {
      if (isUnanswered(error)) silent.add(server);
      throw error;
    }
  };
  let failed: unknown;
  return {
    link: {
      run: (script, keys, args) =>
        ask(keys[0], () => link.run(script, keys, args)),
      call: (command, ...args) =>
        ask(args[0], () => link.call(command, ...args)),
    },
    async written(key) {
      if (failed !== undefined) throw failed;
      try {
        await written(key);
      } catch (error) {
        failed = error;
        throw error;
      }
    },
  };
}

function isInternal(error: unknown): boolean {
  return error instanceof BrokerError && error.code === "internal";
}
