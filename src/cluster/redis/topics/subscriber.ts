// Sharded subscriptions of the node: each topic at the server of its slot, one connection per server. Topics
// lost with a connection or a moved slot are subscribed again. State: wanted names with their connections.

import { randomUUID } from "node:crypto";
import type { Redis } from "ioredis";
import { BrokerError } from "../../../broker/errors.ts";
import { createClient } from "../../../redis/client.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { pause, within } from "./deadline.ts";
import { SubscriberConnection } from "./subscriber-connection.ts";
import { type Address, ONLY_SERVER, Topology } from "./topology.ts";

export interface SubscriberParts {
  readonly link: RedisLink;
  /** Shows in CLIENT LIST. */
  readonly name: string;
  /** Unix milliseconds. */
  readonly clock: () => number;
  readonly onFrame: (name: string, frame: Buffer) => void;
  /** Publications under these names may be missed since `sinceMs`. */
  readonly onLost: (names: readonly string[], sinceMs: number) => void;
  /** These names are subscribed again. */
  readonly onBack: (names: readonly string[]) => void;
  readonly onProblem: (error: unknown, what: string) => void;
}

const RETRY_MS = 50;
const MAX_RECONNECT_MS = 1000;

const reconnectMs = (times: number): number =>
  Math.min(times * RETRY_MS, MAX_RECONNECT_MS);

export class Subscriber {
  readonly #parts: SubscriberParts;
  readonly #topology: Topology;
  readonly #connections = new Map<Address, SubscriberConnection>();
  /** Connection of each wanted name; undefined: unassigned. */
  readonly #placements = new Map<string, SubscriberConnection | undefined>();
  /** Number of names per connection. */
  readonly #placed = new Map<SubscriberConnection, number>();
  /** Wanted and lost. */
  readonly #unassigned = new Set<string>();
  /** Template of new connections. */
  #like: Redis | undefined;
  #isHoming = false;
  #isClosed = false;

  constructor(parts: SubscriberParts) {
    this.#parts = parts;
    const { link, clock, onProblem } = parts;
    const onChange = (sinceMs: number) => this.#moved(sinceMs);
    this.#topology = new Topology(link, { clock, onChange, onProblem });
  }

  /** Connects. Throws when Redis does not let it. */
  async start(): Promise<void> {
    const { link } = this.#parts;
    [this.#like] = link.primaries();
    await this.#topology.start();
    if (!link.isCluster) await this.#connection(ONLY_SERVER).connect();
  }

  /** Resolves when subscribed. Rejects `unavailable`; the name is then not wanted. One call per name at a time. */
  async subscribe(name: string): Promise<void> {
    const deadline = Date.now() + this.#timeoutMs;
    this.#placements.set(name, undefined);
    for (;;)
      try {
        return await this.#subscribe(name);
      } catch (error) {
        const { isUp } = this.#parts.link;
        const isWanted = isUp && this.#placements.has(name);
        if (!isWanted || Date.now() > deadline) {
          this.unsubscribe(name);
          throw error;
        }
        await pause(RETRY_MS);
      }
  }

  /** No effect on a name that is not wanted. */
  unsubscribe(name: string): void {
    this.#unassigned.delete(name);
    const placement = this.#placements.get(name);
    this.#placements.delete(name);
    // A subscription that timed out may still take effect at its server.
    const address = this.#topology.addressOf(name) ?? "";
    (placement ?? this.#connections.get(address))?.unsubscribe([name]);
    this.#count(placement, -1);
  }

  /** No wanted name is lost. */
  get isWhole(): boolean {
    const only = this.#connections.get(ONLY_SERVER);
    return this.#unassigned.size === 0 && only?.isUp !== false;
  }

  /** Resolves when publications before the call have arrived. Rejects `unavailable` after a timeout. */
  async mark(): Promise<void> {
    const deadline = Date.now() + this.#timeoutMs;
    for (;;)
      try {
        return await within(this.#mark(), this.#timeoutMs, "no mark came");
      } catch (error) {
        const { isUp } = this.#parts.link;
        if (!isUp || this.#isClosed || Date.now() > deadline) throw error;
        await pause(RETRY_MS);
      }
  }

  close(): void {
    this.#isClosed = true;
    this.#topology.close();
    for (const connection of this.#connections.values()) connection.close();
    this.#connections.clear();
    this.#placements.clear();
    this.#placed.clear();
    this.#unassigned.clear();
  }

  get #timeoutMs(): number {
    return this.#parts.link.settings.timeoutMs;
  }

  async #subscribe(name: string): Promise<void> {
    const connection = this.#connectionOf(name);
    if (connection === undefined) throw new BrokerError("unavailable");
    await connection.subscribeSoon(name, this.#groupOf(name));
    if (!connection.isUp) throw new BrokerError("unavailable"); // lost again
    if (!this.#placements.has(name)) {
      connection.unsubscribe([name]); // not wanted any more
      throw new BrokerError("unavailable");
    }
    this.#sit(name, connection);
  }

  async #mark(): Promise<void> {
    if (this.#unassigned.size > 0) throw new BrokerError("unavailable");
    const used = [...this.#placed.keys()];
    await Promise.all(used.map((connection) => connection.mark()));
  }

  #sit(name: string, connection: SubscriberConnection | undefined): void {
    this.#count(this.#placements.get(name), -1);
    this.#placements.set(name, connection);
    this.#count(connection, 1);
  }

  #count(connection: SubscriberConnection | undefined, change: number): void {
    if (connection === undefined) return;
    const count = (this.#placed.get(connection) ?? 0) + change;
    if (count > 0) this.#placed.set(connection, count);
    else this.#placed.delete(connection);
  }

  /** Names of one group fit one command: on a Cluster, names of one slot. */
  #groupOf(name: string): string {
    if (!this.#parts.link.isCluster) return "";
    return name.slice(name.indexOf("{"), name.indexOf("}"));
  }

  /** Undefined as well once this is closed: nobody would close another connection. */
  #connectionOf(name: string): SubscriberConnection | undefined {
    if (this.#isClosed) return undefined;
    const address = this.#topology.addressOf(name);
    return address === undefined ? undefined : this.#connection(address);
  }

  #connection(address: Address): SubscriberConnection {
    const found = this.#connections.get(address);
    if (found !== undefined) return found;
    const { link, clock, onFrame, onProblem } = this.#parts;
    const made = new SubscriberConnection(this.#client(address), {
      ...{ clock, onFrame, onProblem },
      publish: async (to, frame) =>
        Number(await link.call("spublish", to, frame)),
      markName: () => this.#topology.nameAt(address, `mark:${randomUUID()}`),
      onUp: () => this.#home(),
      onDown: (self, heardMs) => this.#down(self, heardMs),
    });
    this.#connections.set(address, made);
    if (address !== ONLY_SERVER)
      made
        .connect()
        .catch((error) =>
          onProblem(error, "The subscriber connection to Redis failed"),
        );
    return made;
  }

  /** A connection like the link's own that reconnects by itself. */
  #client(address: Address): Redis {
    const { link, name } = this.#parts;
    const connectionName = `${name}-subscriber`;
    if (address === ONLY_SERVER)
      return createClient(link.settings, connectionName) as Redis;
    const like = this.#like;
    if (like === undefined) throw new BrokerError("unavailable"); // not started
    const colon = address.lastIndexOf(":");
    return like.duplicate({
      ...{
        host: address.slice(0, colon),
        port: Number(address.slice(colon + 1)),
      },
      ...{ connectionName, lazyConnect: true, readOnly: false },
      ...{ enableOfflineQueue: false, autoResubscribe: false },
      ...{ enableAutoPipelining: false, retryStrategy: reconnectMs },
    });
  }

  #down(connection: SubscriberConnection, heardMs: number): void {
    if (this.#isClosed) return;
    const lost: string[] = [];
    for (const [name, placement] of this.#placements)
      if (placement === connection) lost.push(name);
    this.#lose(lost, heardMs);
  }

  /** Slots of the Cluster moved. */
  #moved(sinceMs: number): void {
    const lost: string[] = [];
    for (const [name, placement] of this.#placements)
      if (placement !== undefined && placement !== this.#connectionOf(name))
        lost.push(name);
    this.#lose(lost, sinceMs);
    const serving = this.#topology.addresses();
    for (const [address, connection] of this.#connections)
      if (!serving.has(address)) {
        this.#connections.delete(address);
        connection.close();
      }
    this.#home();
  }

  #lose(names: readonly string[], sinceMs: number): void {
    if (names.length === 0) return;
    for (const name of names) {
      this.#sit(name, undefined);
      this.#unassigned.add(name);
    }
    this.#parts.onLost(names, sinceMs);
    this.#home();
  }

  /** Assigns all lost names; retries until done. */
  #home(): void {
    if (this.#isHoming || this.#unassigned.size === 0) return;
    this.#isHoming = true;
    this.#topology.hurry(true);
    void this.#seatAll().finally(() => {
      this.#isHoming = false;
      this.#topology.hurry(false);
    });
  }

  async #seatAll(): Promise<void> {
    while (this.#unassigned.size > 0 && !this.#isClosed) {
      await Promise.all(
        [...this.#byConnection()].map(([connection, names]) =>
          this.#placement(connection, names),
        ),
      );
      if (this.#unassigned.size > 0) await pause(RETRY_MS);
    }
  }

  /** Unassigned names by connection; on a Cluster also by slot. */
  *#byConnection(): Iterable<readonly [SubscriberConnection, string[]]> {
    const groups = new Map<string, [SubscriberConnection, string[]]>();
    for (const name of this.#unassigned) {
      const connection = this.#connectionOf(name);
      if (!connection?.isUp) continue;
      const key = this.#groupOf(name);
      const group = groups.get(key) ?? [connection, []];
      groups.set(key, group);
      group[1].push(name);
    }
    yield* groups.values();
  }

  async #placement(
    connection: SubscriberConnection,
    names: readonly string[],
  ): Promise<void> {
    try {
      await connection.subscribe(names);
    } catch (error) {
      return this.#parts.onProblem(
        error,
        "Topics could not be subscribed to again",
      );
    }
    if (!connection.isUp) return;
    const seated = names.filter((name) => this.#unassigned.delete(name));
    for (const name of seated) this.#sit(name, connection);
    const unwanted = names.filter((name) => !this.#placements.has(name));
    if (unwanted.length > 0) connection.unsubscribe(unwanted);
    if (seated.length > 0) this.#parts.onBack(seated);
  }
}
