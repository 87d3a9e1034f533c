// Which nodes live. This node says so with every heartbeat and reads in the same round trip who else does. State: this node's life, and the
// cluster as it was at the last heartbeat. A life that was declared dead is never used again: the node goes on as another one.

import { randomBytes } from "node:crypto";
import { BrokerError, isAway } from "../../broker/errors.ts";
import type { NodeInfo } from "../../broker/ports.ts";
import { BoundedMap } from "../../lib/bounded-map.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript } from "../../redis/script.ts";
import { type Life, lifeOf } from "./entry.ts";
import { readBeat, type View, writeNode } from "./view.ts";

const heartbeat = loadScript(new URL("./lua/heartbeat.lua", import.meta.url));
const leave = loadScript(new URL("./lua/leave.lua", import.meta.url));

/** What the link must be able to run for the registry. */
export const registryScripts = [heartbeat, leave];

/** How long the sweep of a dead life is left to the node that took it. */
const SWEEP_LEASE_MS = 10_000;

export interface RegistryParts {
  readonly link: RedisLink;
  readonly nodeId: string;
  /** This node as it is now. */
  readonly portrait: () => NodeInfo;
  readonly heartbeatMs: number;
  readonly deadAfterMs: number;
  /** Called before each heartbeat; what it gives is told Redis' time with the answer, Unix milliseconds. */
  readonly asksTime: () => (redisMs: number) => void;
  /** This node was dead for the others, and lives on as another life. */
  readonly onAnotherLife?: () => void;
  readonly onProblem: (error: unknown, what: string) => void;
}

export interface RegistryListener {
  /** After every heartbeat that was answered; `isNewLife`: nothing of this node is in the directory under its life. */
  onBeat(isNewLife: boolean): void;
  /** A life is dead and it is this node's turn to take its sessions out of the directory. May be said again. */
  onDead(life: Life): void;
}

/** Dead lives of which something was found after their sweep: there are hardly any. */
const MAX_GONE = 1000;

const NOTHING: View = { live: new Map(), dead: new Set() };

export class Registry {
  readonly #parts: RegistryParts;
  readonly #keys: readonly string[];
  #status: "new" | "living" | "outcast" | "closed" = "new";
  #life: Life = "";
  #nextLife: Life;
  #view = NOTHING;
  /** When the last heartbeat that was answered was sent, as `performance.now()`. */
  #beatMs = Number.NEGATIVE_INFINITY;
  readonly #gone = new BoundedMap<Life, true>(MAX_GONE);
  #listener: RegistryListener = { onBeat() {}, onDead() {} };
  #timer: NodeJS.Timeout | undefined;
  #beating: Promise<void> | undefined;

  constructor(parts: RegistryParts) {
    this.#parts = parts;
    this.#nextLife = newLife(parts.nodeId);
    this.#keys = ["beats", "nodes", "dead", "clock"].map((part) =>
      parts.link.keys.shared(part),
    );
  }

  /** Set once, before start. */
  listener(listener: RegistryListener): void {
    this.#listener = listener;
  }

  /** Under which this node's sessions are entered. Throws `unavailable` while the node is not one of the living. */
  get life(): Life {
    this.assertLiving();
    return this.#life;
  }

  /** The newest life this node had; undefined before the first. */
  get currentLife(): Life | undefined {
    return this.#life === "" ? undefined : this.#life;
  }

  /** Throws `unavailable` while this node is not one of the living: it cannot know who is. */
  assertLiving(): void {
    if (this.#status !== "living") throw new BrokerError("unavailable");
  }

  /** Throws `unavailable` while this node is not one of the living, or counts as dead by now: no heartbeat succeeded for `deadAfterMs`. */
  assertBeating(): void {
    this.assertLiving();
    const silentMs = Math.floor(performance.now() - this.#beatMs);
    if (silentMs > this.#parts.deadAfterMs)
      throw new BrokerError("unavailable", {
        message: `No heartbeat of this node reached Redis for ${silentMs} ms: the other nodes take it for dead`,
      });
  }

  /** A dead life of which nobody knows any more. */
  isGone(life: Life): boolean {
    return this.#gone.get(life) === true;
  }

  /** Whether a life found in the directory lives. Throws `unavailable` when that cannot be told now. */
  isLive(life: Life): boolean | Promise<boolean> {
    if (this.#view.live.has(life)) return true;
    if (this.#view.dead.has(life) || this.isGone(life)) return false;
    return this.#find(life);
  }

  /** The living nodes, this one first. Throws `unavailable` while this node is not one of them. */
  nodes(): readonly NodeInfo[] {
    const own = this.life;
    const others = [...this.#view.live].filter(([life]) => life !== own);
    return [this.#parts.portrait(), ...others.map(([, node]) => node)];
  }

  /**
   * Enters the cluster. Another node of the same id that still lives is waited for as long as a dead one would count as alive: then throws an
   * Error with a sentence for the operator.
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

  /** Leaves: the node counts as gone at once. Safe to call twice, and while Redis is away (then it is declared dead in time). */
  async close(): Promise<void> {
    const wasIn = this.#status === "living";
    this.#status = "closed";
    clearInterval(this.#timer);
    await this.#beating?.catch((error: unknown) => this.#failed(error));
    if (!wasIn) return;
    const { link } = this.#parts;
    await link
      .runVital(leave, this.#keys.slice(0, 3), [this.#life])
      .catch((error: unknown) => this.#failed(error));
  }

  /** Says that this node lives and reads who does. Concurrent calls share one round trip. Throws `unavailable`. */
  refresh(): Promise<void> {
    this.#beating ??= this.#beat().finally(() => {
      this.#beating = undefined;
    });
    return this.#beating;
  }

  /** A dead life has left nothing behind. */
  async swept(life: Life): Promise<void> {
    const { link } = this.#parts;
    await link.call("hdel", link.keys.shared("dead"), life);
  }

  /** A life that the last heartbeat said nothing of began since, or is dead and swept. The heartbeat under way may be older than it. */
  async #find(life: Life): Promise<boolean> {
    for (let asked = 0; asked < 2; asked++) {
      await this.refresh();
      if (this.#view.live.has(life)) return true;
    }
    if (!this.#view.dead.has(life)) this.#gone.set(life, true);
    return false;
  }

  async #beat(): Promise<void> {
    if (this.#status === "living") {
      if ((await this.#ask(this.#life, "beat")) === "ok") return;
    } else if (this.#status !== "outcast") throw new BrokerError("unavailable");
    await this.#enter();
  }

  /** Begins a life. `taken`: another node of this id lives; then this one is an outcast that tries again with each heartbeat. */
  async #enter(): Promise<"ok" | "dead" | "taken"> {
    const verdict = await this.#ask(this.#nextLife, "enter");
    // Kept until it was answered: an answer that is lost must not leave another life of this node behind.
    if (verdict !== "taken") this.#nextLife = newLife(this.#parts.nodeId);
    if (verdict === "taken" && this.#status === "living") {
      this.#status = "outcast";
      const error = new Error("another node with this id lives");
      this.#parts.onProblem(error, "The registry of nodes could not be read");
    }
    return verdict;
  }

  async #ask(
    life: Life,
    mode: "enter" | "beat",
  ): Promise<"ok" | "dead" | "taken"> {
    const { link, nodeId, portrait, deadAfterMs, asksTime } = this.#parts;
    const self = writeNode(portrait());
    const args = [life, nodeId, self, deadAfterMs, mode, SWEEP_LEASE_MS];
    const hearTime = asksTime();
    const sentMs = performance.now();
    const beat = readBeat(await link.runVital(heartbeat, this.#keys, args));
    if (beat.verdict !== "ok") return beat.verdict;
    hearTime(beat.redisMs);
    this.#beatMs = sentMs;
    const isAnother = this.#life !== "" && this.#life !== life;
    this.#life = life;
    if (this.#status === "closed") return "ok";
    this.#view = beat.view;
    this.#status = "living";
    this.#listener.onBeat(mode === "enter");
    for (const one of beat.mine) this.#listener.onDead(one);
    if (isAnother) this.#parts.onAnotherLife?.();
    return "ok";
  }

  get #isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Redis away is everybody's news; anything else is ours. */
  #failed(error: unknown): void {
    if (isAway(error)) return;
    this.#parts.onProblem(error, "The heartbeat could not be written to Redis");
  }
}

function newLife(nodeId: string): Life {
  return lifeOf(nodeId, randomBytes(6).toString("hex"));
}
