// Everything of a cluster node that is about sessions: the directory, what keeps it true to the sessions of this node, and what clears it of dead
// nodes' sessions. State: none beside the parts'.

import type { RedisLink } from "../../redis/link.ts";
import { RedisDirectory } from "./directory.ts";
import type { LocalSessions } from "./local-sessions.ts";
import type { Registry } from "./registry.ts";
import { Restorer, type RestorerParts } from "./restore.ts";
import { DirectorySteps } from "./steps.ts";
import { Sweeper } from "./sweep.ts";

export interface SessionSide {
  readonly directory: RedisDirectory;
  readonly restorer: Restorer;
  /** Lets go of what is under way; sessions that are still here are left to whoever survives. */
  close(): Promise<void>;
}

export interface SessionSideParts
  extends Omit<RestorerParts, "steps" | "registry" | "local"> {
  readonly link: RedisLink;
  readonly registry: Registry;
  readonly local: LocalSessions;
}

export function createSessionSide(parts: SessionSideParts): SessionSide {
  const { registry, publish } = parts;
  const steps = new DirectorySteps(parts.link);
  const restorer = new Restorer({ ...parts, steps });
  const directory = new RedisDirectory({
    ...{ ...parts, steps },
    onOwed: () => restorer.want(),
    restore: (sessionId) => restorer.one(sessionId),
  });
  const sweeper = new Sweeper({
    ...{ ...parts, steps },
    onSwept: (uid) => publish({ kind: "presence", uid }),
    done: (life) => registry.swept(life),
  });
  registry.listener({
    onBeat(isNewLife) {
      if (isNewLife) restorer.want();
      else restorer.beat();
    },
    onDead: (life) => sweeper.sweep(life),
  });
  return {
    directory,
    restorer,
    async close() {
      await Promise.all([sweeper.close(), restorer.idle()]);
    },
  };
}
