// Fail-overs in a Redis Cluster: a primary is killed, its replica takes over, the dead one comes
// back as a replica. State: connections to all servers.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import type { Random } from "../support/random.ts";
import type { RedisClusterServers, RedisServer } from "../support/redis.ts";

const WAIT_MS = 120_000;
const MOST_CUT_OFF_MS = 200;

interface Member {
  readonly server: RedisServer;
  readonly client: Redis;
}

export class Failovers {
  readonly #members: readonly Member[];
  readonly #random: Random;
  /** Milliseconds from each kill until a replica had taken over. */
  readonly tookMs: number[] = [];
  /** How often the replica was behind when its primary died. */
  cutOff = 0;

  constructor({ primaries, replicas }: RedisClusterServers, random: Random) {
    this.#random = random;
    this.#members = [...primaries, ...replicas].map((server) => {
      const client = server.client();
      client.on("error", () => {}); // it is killed now and then: that is what this is for
      return { server, client };
    });
  }

  /** Resolves when all is as before, with the roles of two servers exchanged. */
  async once(): Promise<void> {
    const primaries = await this.#primaries();
    const dead = this.#random.pick(primaries);
    const others = this.#members.filter((one) => !primaries.includes(one));
    const startedMs = performance.now();
    if (this.cutOff === 0 || this.#random.flip()) await this.#cutOff(dead, others);
    await dead.server.stop("SIGKILL");
    for (const { server } of others) server.signal("SIGCONT");
    await until("a replica takes over", async () => {
      const roles = await Promise.all(others.map(roleOf));
      return roles.includes("master");
    });
    this.tookMs.push(Math.round(performance.now() - startedMs));
    await dead.server.restart();
    await until("the dead primary is a replica", async () =>
      (await dead.client.info("replication")).includes("master_link_status:up"),
    );
  }

  /** For an instant what the primary takes reaches no replica. */
  async #cutOff(primary: Member, replicas: readonly Member[]): Promise<void> {
    this.cutOff += 1;
    for (const { server } of replicas) server.signal("SIGSTOP");
    await primary.client.call("CLIENT", "KILL", "TYPE", "replica");
    await pause(this.#random.below(MOST_CUT_OFF_MS));
  }

  async #primaries(): Promise<readonly Member[]> {
    const roles = await Promise.all(this.#members.map(roleOf));
    return this.#members.filter((_, at) => roles[at] === "master");
  }
}

async function roleOf({ client }: Member): Promise<string> {
  const [role] = (await client.call("ROLE")) as [string]; // a list that begins with it
  return role;
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + WAIT_MS;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`never: ${what}`);
    await pause(20);
  }
}
