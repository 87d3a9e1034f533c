// Registry of the cluster's live nodes. Every heartbeat announces this node and reads the other
// live nodes in one round trip. Owns this node's incarnation and the live nodes as of the last
// heartbeat. An incarnation that was declared dead is never reused; the node starts a new one
// instead.

import { randomBytes } from "node:crypto";
import { BrokerError, isTransient } from "../../../broker/errors.ts";
import type { Incarnation, NodeInfo } from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import type { MaybePromise } from "../../../lib/maybe-promise.ts";
import { isRejected, startFailure } from "../../../redis/errors.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import type { Agreement, SharedSettings, Timings } from "./agreement.ts";

const heartbeat = loadScript(new URL("./lua/heartbeat.lua", import.meta.url));
const leave = loadScript(new URL("./lua/leave.lua", import.meta.url));
const peers = loadScript(new URL("./lua/peers.lua", import.meta.url));

export interface RegistryPorts {
  readonly link: RedisLink;
  readonly nodeId: string;
  readonly describe: () => NodeInfo;
  /** Name of the function library that the node uses. */
  readonly library: string;
  readonly heartbeatMs: number;
  readonly agreement: Agreement;
  readonly startClockComparison: () => (redisMs: number) => void;
  readonly onNewIncarnation?: () => void;
  readonly onError: (error: unknown, message: string) => void;
}

interface RegistryListener {
  /**
   * Called after every confirmed heartbeat. `isNew` is true for the first heartbeat of the
   * incarnation.
   */
  onBeat(isNew: boolean): void;
  onDeath(): void;
  /** Called when this node was declared dead and another node with its id is live. */
  onEvicted(): void;
}

const MAX_KNOWN_DEAD = 1000;
/**
 * Options for the registry's calls. The calls are vital, because a busy node must not look dead.
 * They may run late, because they do not undo other nodes' changes.
 */
const VITAL = { isVital: true, mayRunLate: true } as const;

interface Announcement extends NodeInfo {
  readonly timings: Timings;
  /** Name of the node's function library, or `undefined` if the node does not announce it. */
  readonly library?: string;
}

type LiveNodes = ReadonlyMap<Incarnation, Announcement>;

/** Reply of `lua/heartbeat.lua`. `taken` means that another node with this node id is live. */
type HeartbeatReply =
  | { readonly verdict: "dead" | "taken" }
  | {
      readonly verdict: "ok";
      readonly live: LiveNodes;
      /** Settings of the live nodes. Empty unless it was the incarnation's first heartbeat. */
      readonly settings: ReadonlyMap<Incarnation, SharedSettings>;
      readonly redisMs: number;
    };

export class Registry {
  readonly #ports: RegistryPorts;
  readonly #keys: readonly string[];
  /** `evicted` means that this node was declared dead and another node with its id is live. */
  #status: "new" | "living" | "evicted" | "closed" = "new";
  #incarnation: Incarnation = "";
  #nextIncarnation: Incarnation;
  #live: LiveNodes = new Map();
  #settings: ReadonlyMap<Incarnation, SharedSettings> = new Map();
  /** Time at which the last confirmed heartbeat was sent, as `performance.now()`. */
  #confirmedMs = Number.NEGATIVE_INFINITY;
  /** Time at which the last confirmed heartbeat was sent, in Unix milliseconds on Redis' clock. */
  #confirmedAtMs = 0;
  #refusedMs = Number.NEGATIVE_INFINITY;
  /** Reason why Redis rejected the last heartbeat, or `undefined` if Redis did not reject it. */
  #refusal: string | undefined;
  readonly #knownDead = new BoundedMap<Incarnation, true>(MAX_KNOWN_DEAD);
  #listener: RegistryListener = { onBeat() {}, onDeath() {}, onEvicted() {} };
  #timer: NodeJS.Timeout | undefined;
  #underway: Promise<void> | undefined;

  constructor(ports: RegistryPorts) {
    this.#ports = ports;
    this.#nextIncarnation = newIncarnation(ports.nodeId);
    this.#keys = ["beats", "nodes", "settings", "clock"].map((part) =>
      ports.link.keys.shared(part),
    );
  }

  setListener(listener: RegistryListener): void {
    this.#listener = listener;
  }

  /** Incarnation under which sessions are stored. Throws `unavailable` if the node is not live. */
  get incarnation(): Incarnation {
    this.assertLiving();
    return this.#incarnation;
  }

  assertLiving(): void {
    if (this.#status !== "living") throw new BrokerError("unavailable");
  }

  /** Throws `unavailable` if this node is not live or may have been declared dead. */
  assertBeating(): void {
    this.assertLiving();
    const silentMs = Math.floor(performance.now() - this.#confirmedMs);
    if (silentMs > this.#deadAfterMs && this.#refusal !== undefined)
      throw new BrokerError("unavailable", {
        message: `Redis has rejected the heartbeats from this node for ${silentMs} ms: ${this.#refusal}. Calls are rejected until Redis accepts writes again`,
      });
    if (silentMs > this.#deadAfterMs)
      throw new BrokerError("unavailable", {
        message: `No heartbeat from this node has reached Redis for ${silentMs} ms, so the other nodes may consider it dead. Check the connection to Redis.`,
      });
  }

  silentSinceMs(): number | undefined {
    const isMember = this.#status === "living" || this.#status === "evicted";
    const deadAfterMs = this.#deadAfterMs;
    const isSilent =
      performance.now() - this.#confirmedMs > deadAfterMs &&
      performance.now() - this.#refusedMs > deadAfterMs;
    return isMember && isSilent ? this.#confirmedAtMs : undefined;
  }

  /** Returns true if the incarnation is live. Sends a heartbeat if the incarnation is unknown. */
  isLive(incarnation: Incarnation): MaybePromise<boolean> {
    if (this.#live.has(incarnation)) return true;
    if (this.#knownDead.get(incarnation) === true) return false;
    return this.#lookUp(incarnation);
  }

  /** Returns the live nodes, this node first. Throws `unavailable` if this node is not live. */
  nodes(): readonly NodeInfo[] {
    const own = this.incarnation;
    const others = [...this.#live].filter(([incarnation]) => incarnation !== own);
    return [this.#ports.describe(), ...others.map(([, node]) => node)];
  }

  /**
   * Returns the live nodes' libraries, or `undefined` if a live node does not announce its library.
   */
  libraries(): ReadonlySet<string> | undefined {
    const libraries = [...this.#live.values()].map(({ library }) => library);
    const names = libraries.filter((library) => library !== undefined);
    if (names.length < libraries.length) return undefined;
    return new Set([...names, this.#ports.library]);
  }

  /**
   * Joins the cluster. If a live node has the same id, waits until that node is declared dead.
   * Throws an Error for the operator if that node stays live, or if a live node's timings do not
   * allow this node to start.
   */
  async start(): Promise<void> {
    if (this.#status !== "new") return;
    const { heartbeatMs, nodeId } = this.#ports;
    const dead = await this.#checkPeers();
    const deadAfterMs = this.#deadAfterMs;
    const deadline = performance.now() + 2 * deadAfterMs + 2 * heartbeatMs;
    while ((await this.#enter()) !== "ok") {
      if (performance.now() > deadline)
        throw new Error(
          `Another node with the id ${JSON.stringify(nodeId)} is running in this cluster. Give each process its own node.id, or leave node.id unset.`,
        );
      await new Promise((resolve) => setTimeout(resolve, heartbeatMs));
    }
    if (this.#isClosed) return;
    await this.#checkLive(dead);
    this.#timer = setInterval(() => {
      this.refresh().catch((error: unknown) => this.#reportFailure(error));
    }, heartbeatMs);
    this.#timer.unref();
  }

  /**
   * Leaves the cluster. The node then counts as dead immediately, or after `deadAfterMs` if Redis
   * cannot be reached.
   */
  async close(): Promise<void> {
    const wasMember = this.#status === "living";
    this.#status = "closed";
    clearInterval(this.#timer);
    await this.#underway?.catch((error: unknown) => this.#reportFailure(error));
    if (!wasMember) return;
    const { link } = this.#ports;
    await link
      .run(leave, this.#keys.slice(0, 3), [this.#incarnation], VITAL)
      .catch((error: unknown) => this.#reportFailure(error));
  }

  get #deadAfterMs(): number {
    return this.#ports.agreement.timings["cluster.deadAfterMs"];
  }

  /**
   * Compares the timings of all nodes before the first heartbeat, because that heartbeat could
   * declare a node with a longer `cluster.deadAfterMs` dead. Returns the incarnations that have
   * been silent for longer than their own `cluster.deadAfterMs`.
   */
  async #checkPeers(): Promise<ReadonlySet<Incarnation>> {
    const { agreement, heartbeatMs } = this.#ports;
    const dead = new Set<Incarnation>();
    const firstBeats = new Map<Incarnation, string>();
    for (;;) {
      const differing: Incarnation[] = [];
      const timings: Timings[] = [];
      for (const { incarnation, node, beat, silentMs } of await this.#peers()) {
        const isDead = silentMs > node.timings["cluster.deadAfterMs"];
        if (isDead) dead.add(incarnation);
        else timings.push(node.timings);
        const refusal = agreement.refusal(node.nodeId, node.timings);
        if (refusal === undefined || isDead) continue;
        if ((firstBeats.get(incarnation) ?? beat) !== beat && !agreement.acceptsNewTimings)
          throw refusal;
        firstBeats.set(incarnation, beat);
        differing.push(incarnation);
      }
      agreement.update(timings);
      if (differing.length === 0 || agreement.acceptsNewTimings || this.#isClosed) return dead;
      await new Promise((resolve) => setTimeout(resolve, heartbeatMs));
    }
  }

  /**
   * Compares the timings again, because another node may have started at the same time. Also
   * compares the other settings.
   */
  async #checkLive(dead: ReadonlySet<Incarnation>): Promise<void> {
    const { agreement } = this.#ports;
    for (const [incarnation, { nodeId, timings }] of this.#live) {
      const refusal = dead.has(incarnation) ? undefined : agreement.refusal(nodeId, timings);
      if (refusal === undefined || agreement.acceptsNewTimings) continue;
      await this.close();
      throw refusal;
    }
    const others = [...this.#settings].flatMap(([incarnation, settings]) => {
      const node = incarnation === this.#incarnation ? undefined : this.#live.get(incarnation);
      return node === undefined ? [] : [[node.nodeId, settings] as const];
    });
    agreement.compare(new Map(others));
  }

  async #peers() {
    const { link } = this.#ports;
    const reply = await link.run(peers, this.#keys.slice(0, 2), [], VITAL);
    return (reply as readonly (readonly Buffer[])[]).map(
      ([incarnation, description, beat, silentMs]) => ({
        incarnation: String(incarnation),
        node: JSON.parse(String(description)) as Announcement,
        beat: String(beat),
        silentMs: Number(silentMs),
      }),
    );
  }

  /** Sends a heartbeat and reads the live nodes. Concurrent calls share one round trip. */
  refresh(): Promise<void> {
    this.#underway ??= this.#sendHeartbeat().finally(() => {
      this.#underway = undefined;
    });
    return this.#underway;
  }

  /**
   * Returns true if the incarnation is live. Sends a second heartbeat if the incarnation is not
   * found, because the first call may join a heartbeat that was already in progress.
   */
  async #lookUp(incarnation: Incarnation): Promise<boolean> {
    for (let attempt = 0; attempt < 2; attempt++) {
      await this.refresh();
      this.assertLiving(); // otherwise, the list of live nodes is outdated
      if (this.#live.has(incarnation)) return true;
    }
    this.#knownDead.set(incarnation, true);
    return false;
  }

  async #sendHeartbeat(): Promise<void> {
    if (this.#status === "living") {
      if ((await this.#exchange(this.#incarnation, "beat")) === "ok") return;
    } else if (this.#status !== "evicted") throw new BrokerError("unavailable");
    await this.#enter();
  }

  /**
   * Enters the cluster. If the node id is `taken` and this node was live before, its status becomes
   * `evicted`, and the next heartbeat tries to enter again.
   */
  async #enter(): Promise<HeartbeatReply["verdict"]> {
    const verdict = await this.#exchange(this.#nextIncarnation, "enter");
    // The incarnation's name is reused until Redis accepts it, because an attempt whose reply was
    // lost may have taken effect.
    if (verdict !== "taken") this.#nextIncarnation = newIncarnation(this.#ports.nodeId);
    if (verdict === "taken" && this.#status === "living") {
      this.#status = "evicted";
      const error = new Error(
        "Another node with this node.id is running. Give each node its own node.id.",
      );
      this.#ports.onError(error, "Could not rejoin the cluster; trying again");
      this.#listener.onEvicted();
    }
    return verdict;
  }

  async #exchange(
    incarnation: Incarnation,
    mode: "enter" | "beat",
  ): Promise<HeartbeatReply["verdict"]> {
    const { link, nodeId, describe, library, agreement, startClockComparison } = this.#ports;
    // Later versions may add fields. Readers ignore fields that they do not know.
    const description = JSON.stringify({ ...describe(), timings: agreement.own, library });
    const settings = mode === "enter" ? JSON.stringify(agreement.settings) : "";
    const args = [incarnation, nodeId, description, this.#deadAfterMs, mode, settings];
    const compareClock = startClockComparison();
    const [sentMs, sentAtMs] = [performance.now(), link.now()];
    const reply = parseReply(await this.#run(args, sentMs));
    if (reply.verdict !== "ok") return reply.verdict;
    compareClock(reply.redisMs);
    link.recordTime(reply.redisMs);
    this.#confirmedMs = sentMs;
    this.#refusal = undefined;
    this.#confirmedAtMs = sentAtMs;
    const isNew = this.#incarnation !== incarnation;
    const wasMember = this.#incarnation !== "";
    this.#incarnation = incarnation;
    if (this.#isClosed) return "ok";
    const previous = [...this.#live.keys()];
    this.#live = reply.live;
    if (mode === "enter") this.#settings = reply.settings;
    agreement.update([...reply.live.values()].map(({ timings }) => timings));
    this.#status = "living";
    this.#listener.onBeat(isNew);
    if (previous.some((node) => !reply.live.has(node))) this.#listener.onDeath();
    if (isNew && wasMember) this.#ports.onNewIncarnation?.();
    return "ok";
  }

  async #run(args: readonly Arg[], sentMs: number): Promise<unknown> {
    try {
      const { link } = this.#ports;
      return await link.run(heartbeat, this.#keys, args, VITAL);
    } catch (error) {
      // A Redis that rejects a heartbeat, for example because its memory is full, also rejects the
      // heartbeats of the other nodes, so no node declares another node dead.
      this.#refusal = isRejected(error) ? startFailure(error).message : undefined;
      if (this.#refusal !== undefined) this.#refusedMs = sentMs;
      throw error;
    }
  }

  get #isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Reports an error unless it is transient: the link itself reports why Redis cannot be used. */
  #reportFailure(error: unknown): void {
    if (isTransient(error)) return;
    this.#ports.onError(error, "Could not write the heartbeat to Redis; trying again");
  }
}

function newIncarnation(nodeId: string): Incarnation {
  return `${nodeId}:${randomBytes(6).toString("hex")}`;
}

function parseReply(reply: unknown): HeartbeatReply {
  const [verdictText, nodes = [], redisMs, settings = []] = reply as [
    Buffer,
    Buffer[]?,
    number?,
    Buffer[]?,
  ];
  const verdict = verdictText.toString() as HeartbeatReply["verdict"];
  if (verdict !== "ok") return { verdict };
  return {
    verdict,
    live: parsePairs<Announcement>(nodes),
    redisMs: Number(redisMs),
    settings: parsePairs<SharedSettings>(settings),
  };
}

function parsePairs<Value>(pairs: readonly Buffer[]): ReadonlyMap<Incarnation, Value> {
  const values = new Map<Incarnation, Value>();
  for (let at = 0; at + 1 < pairs.length; at += 2)
    values.set(String(pairs[at]), JSON.parse(String(pairs[at + 1])) as Value);
  return values;
}
