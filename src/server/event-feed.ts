// Prepares the event feed when a node starts: applies `events.feed` to the store, and removes old
// events regularly. State: the timer and the removal in progress.

import type { EventPosition } from "../broker/event-ports.ts";
import { OnlineSweep } from "../broker/online-sweep.ts";
import { errorLog, type Node } from "./node.ts";
import { StartError } from "./start-error.ts";

const TRIM_INTERVAL_MS = 60_000;
const EMBEDDED_MAX_BYTES = 1024 ** 3;
const REDIS_MAX_BYTES = 256 * 1024 ** 2;

/**
 * Returns the positions up to which webhooks no longer need events, or `undefined` if no webhook is
 * enabled.
 */
type NeededEvents = () => Promise<readonly EventPosition[] | undefined>;

export class EventFeedKeeper {
  readonly #node: Pick<Node, "config" | "store" | "metrics" | "logger" | "drivers">;
  #timer: NodeJS.Timeout | undefined;
  #trimming: Promise<void> | undefined;
  readonly #closing = new AbortController();
  readonly #needed: NeededEvents;

  /**
   * Events after the positions returned by `needed` are kept until the feed, or the on-demand
   * events in it, exceed their size limit (see `events.maxBytes`).
   */
  constructor(
    node: Pick<Node, "config" | "store" | "metrics" | "logger" | "drivers">,
    needed: NeededEvents,
  ) {
    this.#node = node;
    this.#needed = needed;
  }

  /**
   * Applies `events.feed` to a store whose feed has never been turned on or off, and starts the
   * removal of old events. Throws a StartError if the store's state contradicts `events.feed`.
   */
  async start(): Promise<void> {
    const { config, store } = this.#node;
    const { feed } = config.events;
    const isOn = await store.feedSwitch();
    if (feed !== "store" && isOn === undefined) await store.switchFeed(feed === "on");
    else if (feed !== "store" && isOn !== (feed === "on"))
      throw new StartError(
        `The store's event feed is ${isOn ? "on" : "off"}, but events.feed is ${feed}. To change the store, set events.feed = store, start the node and run \`jindou events ${feed}\`. To keep the store as it is, set events.feed = ${isOn ? "on" : "off"}`,
      );
    void this.#trim(); // the start must not wait, because a removal can take minutes
    this.#timer = setInterval(() => void this.#trim(), TRIM_INTERVAL_MS).unref();
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#closing.abort();
    await this.#trimming;
  }

  #trim(): Promise<void> {
    this.#trimming ??= this.#removeOld().finally(() => {
      this.#trimming = undefined;
    });
    return this.#trimming;
  }

  async #removeOld(): Promise<void> {
    const { config, store, metrics, drivers } = this.#node;
    const { retentionS, maxBytes } = config.events;
    const defaultBytes = config.redis.url === "" ? EMBEDDED_MAX_BYTES : REDIS_MAX_BYTES;
    const { eventsOn, eventsBytes, eventsRemoved } = metrics.families;
    try {
      eventsOn.of().set((await store.feedSwitch()) === true ? 1 : 0);
      const beforeMs = drivers.clock() - retentionS * 1000;
      const held = await this.#needed();
      const { signal } = this.#closing;
      const limits = { beforeMs, maxBytes: maxBytes || defaultBytes, held, signal };
      eventsRemoved.of().add(await store.trimEvents(limits));
      eventsBytes.of().set(await store.eventBytes());
    } catch (error) {
      errorLog(this.#node, "events")(error, "Could not remove old events from the feed");
    }
  }
}

export function createOnlineSweep(node: Node): OnlineSweep {
  const { store, cluster, drivers, config, metrics, demand } = node;
  return new OnlineSweep({
    ...{ store, cluster, clock: drivers.clock, delayMs: config.events.presenceDelayMs },
    isOn: () => demand.isOn,
    onOffline: (users) => metrics.families.eventsOffline.of().add(users),
    onError: errorLog(node, "events"),
  });
}
