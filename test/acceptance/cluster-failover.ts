// Fail-overs in a Redis Cluster: a primary is killed, its replica takes over, and the old primary
// is started again as a replica. Keeps one connection to each server.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import type { Random } from "../support/random.ts";
import type { RedisClusterServers, RedisServer } from "../support/redis.ts";

const WAIT_MS = 120_000;
const MAX_CUT_OFF_MS = 200;

interface Member {
  readonly server: RedisServer;
  readonly client: Redis;
}

export class Failovers {
  readonly #members: readonly Member[];
  readonly #random: Random;
  /**
   * Milliseconds from the start of each fail-over, including `#cutOff`, until a replica took over.
   */
  readonly tookMs: number[] = [];
  /** Number of fail-overs in which the replica lagged when its primary was killed. */
  laggingReplicas = 0;

  constructor({ primaries, replicas }: RedisClusterServers, random: Random) {
    this.#random = random;
    this.#members = [...primaries, ...replicas].map((server) => {
      const client = server.client();
      client.on("error", () => {}); // the server is killed on purpose
      return { server, client };
    });
  }

  /**
   * Kills one primary. Resolves when a replica has taken over and the old primary is its replica.
   */
  async failOver(): Promise<void> {
    const primaries = await this.#primaries();
    const dead = this.#random.pick(primaries);
    const others = this.#members.filter((member) => !primaries.includes(member));
    const startedMs = performance.now();
    if (this.laggingReplicas === 0 || this.#random.flip()) await this.#cutOff(dead, others);
    await dead.server.stop("SIGKILL");
    for (const { server } of others) server.signal("SIGCONT");
    await until("a replica takes over", async () => {
      const roles = await Promise.all(others.map(roleOf));
      return roles.includes("master");
    });
    this.tookMs.push(Math.round(performance.now() - startedMs));
    await dead.server.restart();
    await until("the old primary is a replica", async () =>
      (await dead.client.info("replication")).includes("master_link_status:up"),
    );
  }

  /** Freezes the replicas for a moment, so that the primary's last writes reach no replica. */
  async #cutOff(primary: Member, replicas: readonly Member[]): Promise<void> {
    this.laggingReplicas += 1;
    for (const { server } of replicas) server.signal("SIGSTOP");
    await primary.client.call("CLIENT", "KILL", "TYPE", "replica");
    await pause(this.#random.below(MAX_CUT_OFF_MS));
  }

  async #primaries(): Promise<readonly Member[]> {
    const roles = await Promise.all(this.#members.map(roleOf));
    return this.#members.filter((_, at) => roles[at] === "master");
  }
}

async function roleOf({ client }: Member): Promise<string> {
  const [role] = (await client.call("ROLE")) as [string]; // the first element of the reply is the role
  return role;
}

async function until(condition: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + WAIT_MS;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`timed out waiting until ${condition}`);
    await pause(20);
  }
}
