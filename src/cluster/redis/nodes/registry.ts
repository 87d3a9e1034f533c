// Which nodes live. This node says so with every heartbeat and reads in the same round trip which
// others do. State: this node's incarnation, and the cluster as it was at the last heartbeat. An
// incarnation that was declared dead is never used again: the node goes on as another one.

import { randomBytes } from "node:crypto";
import { BrokerError, isTransient } from "../../../broker/errors.ts";
import type { Incarnation, NodeInfo } from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import type { MaybePromise } from "../../../lib/maybe-promise.ts";
import { isUnanswered } from "../../../redis/errors.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";

const heartbeat = loadScript(new URL("./lua/heartbeat.lua", import.meta.url));
const leave = loadScript(new URL("./lua/leave.lua", import.meta.url));

export interface RegistryParts {
  readonly link: RedisLink;
  readonly nodeId: string;
  /** This node as it is now. */
  readonly describe: () => NodeInfo;
  readonly heartbeatMs: number;
  readonly deadAfterMs: number;
  /**
   * Called before each heartbeat; what it gives receives Redis' time with the answer, Unix
   * milliseconds.
   */
  readonly asksTime: () => (redisMs: number) => void;
  /** This node was dead for the others, and lives on as another incarnation. */
  readonly onNewIncarnation?: () => void;
  readonly onError: (error: unknown, what: string) => void;
}

interface RegistryListener {
  /**
   * After every heartbeat that was answered; `isNew`: no session of this node is in the store under
   * its incarnation.
   */
  onBeat(isNew: boolean): void;
  /**
   * Incarnations that lived at the heartbeat before are dead: the sessions they served are offline.
   */
  onDeath(): void;
}

/** Dead incarnations whose entries were found: there are hardly any. */
const MAX_DEAD = 1000;
/** Or a busy node would pass for a dead one. */
const VITAL = { isVital: true } as const;

type LivingNodes = ReadonlyMap<Incarnation, NodeInfo>;

type Beat =
  | { readonly verdict: "dead" | "taken" }
  | {
      readonly verdict: "ok";
      readonly living: LivingNodes;
      /** Redis' clock, Unix milliseconds. */
      readonly redisMs: number;
    };

export class Registry {
  readonly #parts: RegistryParts;
  /** beats, nodes, clock: see heartbeat.lua. */
  readonly #keys: readonly string[];
  /** `evicted`: dead for the others, and another node of its id lives. */
  #status: "new" | "living" | "evicted" | "closed" = "new";
  #incarnation: Incarnation = "";
  #next: Incarnation;
  #living: LivingNodes = new Map();
  /** When the last heartbeat that was answered was sent, as `performance.now()`. */
  #beatMs = Number.NEGATIVE_INFINITY;
  /** The same in Unix milliseconds. */
  #beatAtMs = 0;
  /** When the last heartbeat was sent that Redis refused, Unix milliseconds. */
  #refusedAtMs = 0;
  readonly #dead = new BoundedMap<Incarnation, true>(MAX_DEAD);
  #listener: RegistryListener = { onBeat() {}, onDeath() {} };
  #timer: NodeJS.Timeout | undefined;
  #beating: Promise<void> | undefined;

  constructor(parts: RegistryParts) {
    this.#parts = parts;
    this.#next = newIncarnation(parts.nodeId);
    this.#keys = ["beats", "nodes", "clock"].map((part) => parts.link.keys.shared(part));
  }

  /** Set once, before start. */
  listener(listener: RegistryListener): void {
    this.#listener = listener;
  }

  /**
   * Under which this node's sessions are entered. Throws `unavailable` while the node is not one of
   * the living.
   */
  get incarnation(): Incarnation {
    this.assertLiving();
    return this.#incarnation;
  }

  /**
   * Throws `unavailable` while this node is not one of the living: it cannot know which nodes are.
   */
  assertLiving(): void {
    if (this.#status !== "living") throw new BrokerError("unavailable");
  }

  /**
   * Throws `unavailable` while this node is not one of the living, or counts as dead by now: no
   * heartbeat succeeded for `deadAfterMs`.
   */
  assertBeating(): void {
    this.assertLiving();
    const silentMs = Math.floor(performance.now() - this.#beatMs);
    if (silentMs > this.#parts.deadAfterMs)
      throw new BrokerError("unavailable", {
        message: `No heartbeat of this node reached Redis for ${silentMs} ms: the other nodes take it for dead`,
      });
  }

  /**
   * When the last heartbeat that was answered was sent, Unix milliseconds, where the others may
   * take this node for dead by now; else undefined.
   */
  silentSinceMs(): number | undefined {
    const isIn = this.#status === "living" || this.#status === "evicted";
    const { deadAfterMs } = this.#parts;
    const isSilent =
      performance.now() - this.#beatMs > deadAfterMs &&
      Date.now() - this.#refusedAtMs > deadAfterMs;
    return isIn && isSilent ? this.#beatAtMs : undefined;
  }

  /**
   * Whether an incarnation that the store names lives. Throws `unavailable` when that cannot be
   * found out now.
   */
  isLive(incarnation: Incarnation): MaybePromise<boolean> {
    if (this.#living.has(incarnation)) return true;
    if (this.#dead.get(incarnation) === true) return false;
    return this.#find(incarnation);
  }

  /** The living nodes, this one first. Throws `unavailable` while this node is not one of them. */
  nodes(): readonly NodeInfo[] {
    const own = this.incarnation;
    const others = [...this.#living].filter(([one]) => one !== own);
    return [this.#parts.describe(), ...others.map(([, node]) => node)];
  }

  /**
   * Enters the cluster. Another node of the same id that still lives is waited for as long as a
   * dead one would count as alive: then throws an Error with a message for the operator.
   */
  async start(): Promise<void> {
    if (this.#status !== "new") return;
    const { heartbeatMs, deadAfterMs, nodeId } = this.#parts;
    const deadline = performance.now() + 2 * deadAfterMs + 2 * heartbeatMs;
    while ((await this.#enter()) !== "ok") {
      if (performance.now() > deadline)
        throw new Error(
          `Another node with the id ${JSON.stringify(nodeId)} lives in this cluster; give each process a node.id of its own, or none`,
        );
      await new Promise((resolve) => setTimeout(resolve, heartbeatMs));
    }
    if (this.#isClosed) return;
    this.#timer = setInterval(() => {
      this.refresh().catch((error: unknown) => this.#failed(error));
    }, heartbeatMs);
    this.#timer.unref();
  }

  /**
   * Leaves: the node counts as dead at once. Safe to call twice, and while Redis is away (then it
   * is declared dead in time).
   */
  async close(): Promise<void> {
    const wasIn = this.#status === "living";
    this.#status = "closed";
    clearInterval(this.#timer);
    await this.#beating?.catch((error: unknown) => this.#failed(error));
    if (!wasIn) return;
    const { link } = this.#parts;
    await link
      .run(leave, this.#keys.slice(0, 2), [this.#incarnation], VITAL)
      .catch((error: unknown) => this.#failed(error));
  }

  /**
   * Says that this node lives and reads which nodes do. Concurrent calls share one round trip.
   * Throws `unavailable`.
   */
  refresh(): Promise<void> {
    this.#beating ??= this.#beat().finally(() => {
      this.#beating = undefined;
    });
    return this.#beating;
  }

  /**
   * An incarnation that was not in the last heartbeat's answer began since, or is dead. The
   * heartbeat under way may be older than it.
   */
  async #find(incarnation: Incarnation): Promise<boolean> {
    for (let asked = 0; asked < 2; asked++) {
      await this.refresh();
      if (this.#living.has(incarnation)) return true;
    }
    this.#dead.set(incarnation, true);
    return false;
  }

  async #beat(): Promise<void> {
    if (this.#status === "living") {
      if ((await this.#ask(this.#incarnation, "beat")) === "ok") return;
    } else if (this.#status !== "evicted") throw new BrokerError("unavailable");
    await this.#enter();
  }

  /**
   * Begins an incarnation. `taken`: another node of this id lives; then this one is evicted and
   * tries again with each heartbeat.
   */
  async #enter(): Promise<Beat["verdict"]> {
    const verdict = await this.#ask(this.#next, "enter");
    // Kept until it was answered: an answer that is lost must not leave another incarnation of this
    // node behind.
    if (verdict !== "taken") this.#next = newIncarnation(this.#parts.nodeId);
    if (verdict === "taken" && this.#status === "living") {
      this.#status = "evicted";
      const error = new Error("another node with this id lives");
      this.#parts.onError(error, "The registry of nodes could not be read");
    }
    return verdict;
  }

  async #ask(incarnation: Incarnation, mode: "enter" | "beat"): Promise<Beat["verdict"]> {
    const { nodeId, describe, deadAfterMs, asksTime } = this.#parts;
    const description = JSON.stringify(describe()); // fields may be added; a reader ignores those it does not know
    const args = [incarnation, nodeId, description, deadAfterMs, mode];
    const hearTime = asksTime();
    const [sentMs, sentAtMs] = [performance.now(), Date.now()];
    const beat = readBeat(await this.#run(args, sentAtMs));
    if (beat.verdict !== "ok") return beat.verdict;
    hearTime(beat.redisMs);
    this.#beatMs = sentMs;
    this.#beatAtMs = sentAtMs;
    const isNew = this.#incarnation !== incarnation;
    const wasIn = this.#incarnation !== "";
    this.#incarnation = incarnation;
    if (this.#isClosed) return "ok";
    const before = [...this.#living.keys()];
    this.#living = beat.living;
    this.#status = "living";
    this.#listener.onBeat(isNew);
    if (before.some((one) => !beat.living.has(one))) this.#listener.onDeath();
    if (isNew && wasIn) this.#parts.onNewIncarnation?.();
    return "ok";
  }

  async #run(args: readonly Arg[], sentAtMs: number): Promise<unknown> {
    try {
      const { link } = this.#parts;
      return await link.run(heartbeat, this.#keys, args, VITAL);
    } catch (error) {
      // Redis refuses heartbeats, as when it is full: those of the other nodes too, none of which
      // takes this one for dead.
      if (isTransient(error) && !isUnanswered(error)) this.#refusedAtMs = sentAtMs;
      throw error;
    }
  }

  get #isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Redis away is reported by the link; anything else is reported here. */
  #failed(error: unknown): void {
    if (isTransient(error)) return;
    this.#parts.onError(error, "The heartbeat could not be written to Redis");
  }
}

function newIncarnation(nodeId: string): Incarnation {
  return `${nodeId}:${randomBytes(6).toString("hex")}`;
}

/** Reads the reply of `lua/heartbeat.lua`. */
function readBeat(reply: unknown): Beat {
  const [said, nodes = [], redisMs] = reply as [Buffer, Buffer[]?, number?];
  const verdict = said.toString() as Beat["verdict"];
  if (verdict !== "ok") return { verdict };
  const living = new Map<Incarnation, NodeInfo>();
  for (let at = 0; at + 1 < nodes.length; at += 2)
    living.set(
      String(nodes[at]),
      JSON.parse(String(nodes[at + 1])) as NodeInfo, // as `describe` gave it
    );
  return { verdict, living, redisMs: Number(redisMs) };
}
