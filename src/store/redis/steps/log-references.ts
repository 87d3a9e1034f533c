// References from forks to their sources, which may be in other slots. A reference is created
// before its fork. When the fork is removed, the reference stays in the key `logReleases` of the
// fork's bucket until the source has released it. A sweep completes interrupted steps.

import { runEach } from "../../sweep-failures.ts";
import type { Operations } from "../operations.ts";
import type { RedisStorePorts } from "../ports.ts";
import { logPlace, namesIn } from "./log-head.ts";
import type { LogReads } from "./log-reads.ts";
import { ALL_BUCKETS, bucketsWithWork, sweepDue } from "./sweep-buckets.ts";

/** Age at which a reference without a fork is released. */
const REFERENCE_MS = 60_000;
const PAGE = 64;

interface LogReferences {
  confirm(reference: string): Promise<void>;
  /**
   * Releases a reference. Removes the source if it is deleted or expired and has no other
   * reference. Does nothing for "".
   */
  release(reference: string): Promise<void>;
  /** Releases the references of removed forks and of interrupted creations. */
  sweep(isStopped: () => boolean): Promise<void>;
}

export function createLogReferences(
  { link, clock }: Pick<RedisStorePorts, "link" | "clock">,
  { operations, reads }: { readonly operations: Operations; readonly reads: LogReads },
): LogReferences {
  const { keys } = link;

  async function confirm(reference: string): Promise<void> {
    const place = logPlace(keys, namesIn(reference).source);
    await operations.run(place, { name: "log_confirm", texts: [place.base, reference] });
  }

  async function release(reference: string): Promise<void> {
    for (let next = reference; next !== ""; ) {
      const { source, fork } = namesIn(next);
      const at = logPlace(keys, source);
      const reply = await operations.run(at, {
        name: "log_release",
        texts: [at.base, at.text, next],
      });
      const forkPlace = logPlace(keys, fork);
      await operations.run(forkPlace, { name: "log_released", texts: [forkPlace.base, next] });
      next = String((reply as readonly unknown[])[1]);
    }
  }

  async function releaseRemoved(bucket: number, isStopped: () => boolean): Promise<void> {
    if (isStopped()) return;
    const members = await link.call("srandmember", keys.bucket("logReleases", bucket), PAGE);
    const steps = (members as readonly Buffer[]).map((reference) => async () => {
      if (!isStopped()) await release(String(reference));
    });
    await runEach(steps);
  }

  async function judgeUnconfirmed(reference: string): Promise<boolean> {
    const fork = await reads.stored(namesIn(reference).fork, true);
    const isUsed = typeof fork !== "string" && fork.reference === reference;
    await (isUsed ? confirm(reference) : release(reference));
    return true;
  }

  return {
    confirm,
    release,
    async sweep(isStopped) {
      const due: readonly [string, string] = ["-inf", `${clock() - REFERENCE_MS}`];
      const [unconfirmed, removed] = link.isCluster
        ? [ALL_BUCKETS, ALL_BUCKETS]
        : await Promise.all([
            bucketsWithWork(link, "logReferences", [due]),
            bucketsWithWork(link, "logReleases"),
          ]);
      const judgeBucket = (bucket: number) =>
        sweepDue(link, keys.bucket("logReferences", bucket), {
          ...{ nowMs: clock() - REFERENCE_MS, isStopped, process: judgeUnconfirmed },
        });
      await runEach([
        ...removed.map((bucket) => () => releaseRemoved(bucket, isStopped)),
        ...unconfirmed.map((bucket) => () => judgeBucket(bucket)),
      ]);
    },
  };
}
