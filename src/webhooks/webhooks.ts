// Manages the endpoints, and delivers events to the endpoints whose lease this node holds. State: a
// runner for each lease, and the attempts that are not stored yet.

import { randomBytes, randomUUID } from "node:crypto";
import { BrokerError } from "../broker/errors.ts";
import type { EventPosition, EventStore } from "../broker/event-ports.ts";
import type { Events } from "../broker/events.ts";
import { LEASE_MS, LEASE_TICK_MS, LeaseTerm } from "../broker/held-lease.ts";
import type { Lease, LeaseStore } from "../broker/lease-ports.ts";
import {
  type OrRefusal,
  type ReplayRange,
  type StoredWebhook,
  WEBHOOK_DEFAULTS,
  type WebhookAttempt,
  type WebhookChanges,
  type WebhookFailure,
  type WebhookFormat,
  type WebhookRefusal,
  type WebhookSettings,
  type WebhookStore,
  type Webhooks,
} from "../broker/webhook-ports.ts";
import { limitedReports } from "../lib/limited-reports.ts";
import { ifReadable } from "../lib/readable.ts";
import type { Resolve } from "../outgoing/connector.ts";
import { signedHeaders, signingKeyOf } from "../outgoing/signature.ts";
import { AddressRules } from "./addresses.ts";
import {
  type Endpoint,
  endpointOf,
  type FixedEndpoint,
  isActive,
  isFixedRecord,
  type Replay,
  seenAtMsOf,
  targetHashOf,
  textOf,
  viewOf,
} from "./endpoint.ts";
import { readFeed } from "./feed.ts";
import { FeedTail } from "./feed-tail.ts";
import { cloudEventsFormat, encodeEvent, type Format, standardFormat } from "./formats.ts";
import { acceptedPositions, type Delivery, type ParkedText, Runner } from "./runner.ts";
import { createSender, type Outcome, type Sender } from "./sender.ts";

const SECRET_BYTES = 32;
/**
 * Interval at which a node looks for endpoints while there are none. It is shorter than a lease, so
 * that the other nodes have read a new endpoint before its first lease can expire.
 */
const IDLE_TICK_MS = 5000;
const KEPT_ATTEMPTS = 1000;
/** Interval at which a node records that its configuration has a fixed endpoint. */
const SEEN_INTERVAL_MS = 3_600_000;
/** Time after which a fixed endpoint that no node has in its configuration is removed. */
const UNSEEN_MS = 24 * SEEN_INTERVAL_MS;
/** Interval at which the positions of lanes that have skipped events are stored. */
const FLUSH_INTERVAL_MS = 30_000;
/** Minimum time between two reports of the same kind of unreadable stored text. */
const REPORT_INTERVAL_MS = 60_000;
const MAX_REPLAYS = 10;
const MAX_SECRETS = 5;
/**
 * Maximum number of attempts to make a change if other calls change the endpoint at the same time.
 */
const CHANGE_ATTEMPTS = 10;
/** Maximum number of API calls (tests and retries) that send a request at the same time. */
const MAX_SENDING_CALLS = 20;
const TOO_MANY_REPLAYS = `The webhook has ${MAX_REPLAYS} replays that have not ended; wait until one ends`;
const TOO_MANY_SECRETS = `The webhook has ${MAX_SECRETS} secrets whose overlap has not ended; wait until one overlap ends`;
const BAD_PLACE =
  "after and before must each be a cursor of GET /events, a time (RFC 3339 or Unix milliseconds), now or oldest";
const UNLIMITED = Number.MAX_SAFE_INTEGER;

interface WebhookMetrics {
  /** Counts an attempt. `outcome` is a status class such as `2xx`, or `error`. */
  attempted(id: string, outcome: string, ms: number, events: number): void;
  /**
   * Registers the functions that return an endpoint's figures for the metrics. The metrics are 0
   * while another node delivers.
   */
  watch(id: string, figures: WebhookFigures): void;
}

interface WebhookFigures {
  /**
   * Returns the time of the oldest event in a batch that has not been accepted yet, or `undefined`
   * if there is no such batch.
   */
  oldestMs(): number | undefined;
  /** Returns the number of events that have not been accepted yet. */
  lag(): number;
  parked(): number;
}

interface WebhooksPorts {
  readonly store: WebhookStore &
    Pick<LeaseStore, "releaseLease"> &
    Pick<EventStore, "newestEvents" | "readEvents" | "onEvents">;
  readonly feed: Pick<Events, "isOn" | "positionsAt" | "readPartition">;
  readonly fixed: readonly FixedEndpoint[];
  readonly max: number;
  readonly timeoutMs: number;
  /** Internal networks in which endpoints created through the API may be. */
  readonly allowNetworks: readonly string[];
  readonly resolve: Resolve;
  readonly formats: Readonly<Partial<Record<WebhookFormat, Format>>>;
  readonly nodeId: string;
  readonly version: string;
  /**
   * The store's clock. It is used because other nodes compare the times that this node stores, and
   * because it also determines the times of events.
   */
  readonly clock: () => number;
  readonly metrics: WebhookMetrics;
  onError(error: unknown, message: string): void;
  onDisabled(id: string, reason: string): void;
  /** Called when an endpoint was created, changed or deleted. */
  onChanged(): Promise<void>;
  /** Called when events were lost before an endpoint received them. */
  onLost(id: string, events: number): void;
}

export interface WebhookService extends Webhooks {
  /**
   * Resolves after the first attempt to store the configured endpoints. Once an endpoint is stored,
   * every later event that its settings select is delivered to it.
   */
  start(): Promise<void>;
  /**
   * Returns, for each partition of the feed, the position up to which the slowest enabled endpoint
   * has accepted all events. Returns `undefined` if no endpoint is enabled.
   */
  neededEvents(): Promise<readonly EventPosition[] | undefined>;
  /** Returns, for each enabled endpoint, the event types that are listed in its settings. */
  activeTypes(): Promise<readonly (readonly string[])[]>;
  close(): Promise<void>;
}

const DEFAULTS: Omit<WebhookSettings, "url" | "types"> = {
  channels: {},
  format: "standard",
  enabled: true,
  ...WEBHOOK_DEFAULTS,
};

export function createWebhooks(ports: WebhooksPorts): WebhookService {
  return new WebhookDispatch(ports);
}

class WebhookDispatch implements WebhookService {
  readonly #ports: WebhooksPorts;
  readonly #owner = randomUUID();
  readonly #rules: AddressRules;
  readonly #senders: { readonly fixed: Sender; readonly created: Sender };
  readonly #runners = new Map<string, Runner>();
  readonly #terms = new Map<string, LeaseTerm>();
  readonly #tail: FeedTail;
  readonly #reportDamage: (error: Error, what: string) => void;
  readonly #attempts = new Map<string, string[]>();
  /**
   * Runners that have been stopped but have not finished their requests. The next runner of an
   * endpoint starts after its previous runner has ended, because both would have the same lease.
   */
  readonly #ending = new Map<string, Promise<void>>();
  /** Ids of the fixed endpoints whose URL and secrets were compared with the stored record. */
  readonly #checkedTargets = new Set<string>();
  /** Newest event of each partition at the last tick. */
  #newest: readonly EventPosition[] = [];
  /** Time of the last flush on the monotonic clock. */
  #flushedMs = performance.now();
  #timer: NodeJS.Timeout | undefined;
  #ticking: Promise<void> = Promise.resolve();
  #tickMs = LEASE_TICK_MS;
  #isClosed = false;
  #sendingCalls = 0;

  constructor(ports: WebhooksPorts) {
    const { allowNetworks, timeoutMs, resolve } = ports;
    this.#ports = ports;
    this.#tail = new FeedTail(ports.store);
    this.#reportDamage = limitedReports(ports.onError, REPORT_INTERVAL_MS);
    this.#rules = new AddressRules(allowNetworks);
    const shared = { resolve, timeoutMs };
    this.#senders = {
      fixed: createSender({ ...shared, rules: new AddressRules("all") }),
      created: createSender({ ...shared, rules: this.#rules }),
    };
  }

  async start(): Promise<void> {
    this.#tick();
    await this.#ticking;
  }

  async neededEvents(): Promise<readonly EventPosition[] | undefined> {
    const { store } = this.#ports;
    const endpoints = (await this.#endpoints()).filter(isActive);
    const [first, ...others] = await Promise.all(
      endpoints.map(async (endpoint) =>
        acceptedPositions(
          endpoint,
          await store.webhookTexts(endpoint.id, "state"),
          this.#reportDamage,
        ),
      ),
    );
    return first?.map((position, partition) =>
      others.reduce((slowest, positions) => {
        const other = positions[partition] ?? slowest;
        return other.number < slowest.number ? other : slowest;
      }, position),
    );
  }

  async activeTypes(): Promise<readonly (readonly string[])[]> {
    const endpoints = await this.#endpoints();
    return endpoints.filter(isActive).map(({ settings }) => settings.types);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#ticking;
    const runners = [...this.#runners.values()];
    this.#runners.clear();
    const stopped = runners.map((runner) => this.#stop(runner));
    await Promise.all([this.#senders.fixed.close(), this.#senders.created.close()]);
    await Promise.all([...stopped, ...this.#ending.values()]);
  }

  // --- Use cases ---------------------------------------------------------------------------------

  async list() {
    return (await this.#endpoints()).map(viewOf);
  }

  async create(changes: WebhookChanges & Pick<WebhookSettings, "url">) {
    const { store, feed, max } = this.#ports;
    if (!(await feed.isOn())) return { refusal: "events_off" } as const;
    const settings = this.#settingsOf(changes);
    const refusal = await this.#urlRefusal(settings.url);
    if (refusal !== undefined) return refusal;
    const nowMs = this.#ports.clock();
    const secret = createSecret();
    const endpoint: Endpoint = {
      ...{ id: `wh_${randomBytes(9).toString("base64url")}`, version: 0, isFixed: false, settings },
      secrets: [{ text: secret }],
      from: await store.newestEvents(),
      ...{ createdAtMs: nowMs, enabledAtMs: nowMs, replays: [] },
    };
    const fixedRecords = (await store.webhooks()).filter(isFixedRecord);
    const maxRecords = max + fixedRecords.length;
    const result = await store.putWebhook(endpoint.id, textOf(endpoint), 0, maxRecords);
    if (result === "full") return { refusal: "webhook_limit" } as const;
    await this.#announce();
    return { id: endpoint.id, secret };
  }

  async update(id: string, changes: WebhookChanges) {
    if (changes.url !== undefined) {
      const refusal = await this.#urlRefusal(changes.url);
      if (refusal !== undefined) return refusal;
    }
    const changed = await this.#change(id, (endpoint) => {
      const { enabled } = changes;
      const isOnlyEnabling = enabled === true && Object.keys(defined(changes)).length === 1;
      if (endpoint.isFixed && !isOnlyEnabling) return { refusal: "webhook_fixed" };
      const { disabledReason: _, ...rest } = endpoint;
      const settings = this.#settingsOf(changes, endpoint.settings);
      const isEnabledAgain = enabled === true && !isActive(endpoint);
      const startsOver = isEnabledAgain || settings.url !== endpoint.settings.url;
      return {
        ...(enabled === undefined ? endpoint : rest),
        settings,
        enabledAtMs: startsOver ? this.#ports.clock() : endpoint.enabledAtMs,
      };
    });
    return "refusal" in changed ? changed : viewOf(changed);
  }

  async remove(id: string): OrRefusal<"done"> {
    const endpoint = await this.#endpoint(id);
    if ("refusal" in endpoint) return endpoint;
    if (endpoint.isFixed) return { refusal: "webhook_fixed" };
    const isRemoved = await this.#ports.store.removeWebhook(id);
    await this.#announce();
    return isRemoved ? "done" : { refusal: "webhook_not_found" };
  }

  async test(id: string): OrRefusal<WebhookAttempt> {
    const endpoint = await this.#endpoint(id);
    if ("refusal" in endpoint) return endpoint;
    const timestamp = new Date().toISOString();
    const eventId = `ping-${randomUUID()}`;
    const event = { id: eventId, type: "ping", timestamp, data: { webhook_id: id } };
    const request = standardFormat.format([encodeEvent(event)], { isSingle: true, timestamp });
    return this.#sendNow(endpoint, { id: eventId, request, attempt: 1, events: 0 });
  }

  async replay(id: string, { after, before, types }: ReplayRange) {
    const { feed } = this.#ports;
    if (!(await feed.isOn())) return { refusal: "events_off" } as const;
    const from = await feed.positionsAt(after);
    const end = await feed.positionsAt(before ?? "now");
    if (from === undefined || end === undefined)
      return { refusal: "bad_cursor", message: BAD_PLACE } as const;
    const replay: Replay = {
      id: randomBytes(6).toString("base64url"),
      after: from,
      before: end,
      types,
    };
    const changed = await this.#change(id, (endpoint) =>
      endpoint.replays.length < MAX_REPLAYS
        ? { ...endpoint, replays: [...endpoint.replays, replay] }
        : { refusal: "webhook_limit", message: TOO_MANY_REPLAYS },
    );
    return "refusal" in changed ? changed : { id: replay.id };
  }

  async addSecret(id: string, overlapS: number) {
    const secret = createSecret();
    const nowMs = this.#ports.clock();
    const untilMs = nowMs + overlapS * 1000;
    const changed = await this.#change(id, (endpoint) => {
      if (endpoint.isFixed) return { refusal: "webhook_fixed" };
      const earlier = endpoint.secrets
        .filter((other) => (other.untilMs ?? Infinity) > nowMs)
        .map(({ text, untilMs: ends = Infinity }) => ({ text, untilMs: Math.min(ends, untilMs) }))
        .filter((other) => other.untilMs > nowMs);
      if (earlier.length >= MAX_SECRETS)
        return { refusal: "webhook_limit", message: TOO_MANY_SECRETS };
      return { ...endpoint, secrets: [{ text: secret }, ...earlier], enabledAtMs: nowMs };
    });
    return "refusal" in changed ? changed : { secret };
  }

  async attempts(id: string, limit: number): OrRefusal<readonly WebhookAttempt[]> {
    const endpoint = await this.#endpoint(id);
    if ("refusal" in endpoint) return endpoint;
    await this.#storeAttempts(id);
    const rows = await this.#ports.store.webhookAttempts(id, limit);
    return this.#parsed<WebhookAttempt>(rows); // as written by `#record`
  }

  async failures(id: string): OrRefusal<readonly WebhookFailure[]> {
    const endpoint = await this.#endpoint(id);
    if ("refusal" in endpoint) return endpoint;
    const texts = await this.#ports.store.webhookTexts(id, "parked");
    const failures = this.#parsed<ParkedText>([...texts.values()]); // as written by a runner
    return failures.sort((a, b) => a.parkedMs - b.parkedMs);
  }

  async retry(id: string, eventId: string): OrRefusal<WebhookAttempt> {
    const { store } = this.#ports;
    const endpoint = await this.#endpoint(id);
    if ("refusal" in endpoint) return endpoint;
    const text = (await store.webhookTexts(id, "parked")).get(eventId);
    if (text === undefined) return { refusal: "webhook_failure_not_found" };
    const parked: ParkedText = JSON.parse(text); // as written by a runner
    // The settings may have changed, but each attempt has the same id and bytes.
    const { requestId, event, format, isSingle, formedMs } = parked;
    const attempt = await this.#sendNow(endpoint, {
      id: requestId,
      request: this.#formatOf(format).format([encodeEvent(event)], {
        isSingle,
        timestamp: new Date(formedMs).toISOString(),
      }),
      ...{ attempt: parked.attempts + 1, events: 1 },
    });
    if ("refusal" in attempt) return attempt;
    const { status, error, reply } = attempt;
    const isAccepted = status >= 200 && status < 300;
    const next: ParkedText = { ...parked, attempts: parked.attempts + 1, status, error, reply };
    const change = isAccepted ? undefined : JSON.stringify(next);
    // If another retry of the event was accepted in the meantime, the event is no longer parked,
    // and this call does not store it again.
    await store.saveWebhookTexts({ webhookId: id }, { parked: new Map([[eventId, change]]) });
    // Storing the unchanged endpoint raises its version, which makes the delivering node count the
    // parked events again.
    if (isAccepted) await this.#change(id, (unchanged) => unchanged);
    return attempt;
  }

  /** Parses stored texts. Leaves out and reports texts that cannot be parsed. */
  #parsed<Row>(texts: readonly string[]): Row[] {
    const what = "Could not parse a stored attempt or failure of a webhook, so it is not listed";
    return texts.flatMap(
      (text) => ifReadable(() => JSON.parse(text) as Row, what, this.#reportDamage) ?? [],
    );
  }

  // --- Endpoints ---------------------------------------------------------------------------------

  async #endpoints(): Promise<readonly Endpoint[]> {
    return this.#endpointsOf(await this.#ports.store.webhooks());
  }

  #endpointsOf(stored: readonly StoredWebhook[]): readonly Endpoint[] {
    return stored.flatMap((row) => this.#endpointOf(row) ?? []);
  }

  #endpointOf(stored: StoredWebhook): Endpoint | undefined {
    return endpointOf(
      stored,
      this.#ports.fixed.find(({ id }) => id === stored.id),
    );
  }

  async #endpoint(id: string): OrRefusal<Endpoint> {
    const endpoints = await this.#endpoints();
    return endpoints.find((endpoint) => endpoint.id === id) ?? { refusal: "webhook_not_found" };
  }

  /** Changes an endpoint. Does not overwrite a change that another call makes at the same time. */
  async #change(
    id: string,
    change: (endpoint: Endpoint) => Endpoint | WebhookRefusal,
  ): OrRefusal<Endpoint> {
    for (let at = 0; at < CHANGE_ATTEMPTS; at++) {
      const endpoint = await this.#endpoint(id);
      if ("refusal" in endpoint) return endpoint;
      const changed = change(endpoint);
      if ("refusal" in changed) return changed;
      const { store } = this.#ports;
      const { version } = endpoint;
      const freesSpace = !isActive(changed);
      const result = await store.putWebhook(id, textOf(changed), version, UNLIMITED, freesSpace);
      if (result !== "done") continue;
      await this.#announce();
      return { ...changed, version: version + 1 };
    }
    return { refusal: "overloaded" };
  }

  #settingsOf(changes: WebhookChanges, before?: WebhookSettings): WebhookSettings {
    const { url = "", types, format = DEFAULTS.format } = { ...before, ...defined(changes) };
    const settings = { ...DEFAULTS, ...before, ...defined(changes) };
    const isNamed = types !== undefined && types.length > 0;
    return {
      ...{ ...settings, url, format },
      types: isNamed ? types : this.#formatOf(format).types,
      batch: { ...(before ?? DEFAULTS).batch, ...defined(changes.batch ?? {}) },
    };
  }

  async #urlRefusal(url: string): Promise<WebhookRefusal | undefined> {
    const message = await this.#rules.urlRefusal(url, this.#ports.resolve);
    return message === undefined ? undefined : { refusal: "url_refused", message };
  }

  /**
   * Makes this node apply a change to an endpoint at once. The other nodes read the change at their
   * next tick.
   */
  async #announce(): Promise<void> {
    this.#tick();
    await this.#ports.onChanged();
  }

  // --- Deliveries --------------------------------------------------------------------------------

  /** Reads the endpoints and renews the leases at once, and then every `#tickMs` milliseconds. */
  #tick(): void {
    clearTimeout(this.#timer);
    if (this.#isClosed) return;
    this.#ticking = this.#ticking
      .then(() => this.#renew())
      .catch((error: unknown) => this.#ports.onError(error, "Could not read the webhooks"))
      .finally(() => {
        clearTimeout(this.#timer);
        if (!this.#isClosed) this.#timer = setTimeout(() => this.#tick(), this.#tickMs);
      });
  }

  async #renew(): Promise<void> {
    if (this.#isClosed) return;
    const stored = await this.#ports.store.webhooks();
    const endpoints = this.#endpointsOf(stored);
    const isIdle = endpoints.length + this.#ports.fixed.length === 0;
    this.#tickMs = isIdle ? IDLE_TICK_MS : LEASE_TICK_MS;
    const active = new Map(endpoints.filter(isActive).map((endpoint) => [endpoint.id, endpoint]));
    for (const [id, runner] of this.#runners) if (!active.has(id)) this.#end(id, runner);
    await this.#renewLeases([...active.values()].filter(({ id }) => !this.#ending.has(id)));
    const ids = new Set(endpoints.map(({ id }) => id));
    // Forgets the endpoints that no longer exist.
    for (const id of this.#attempts.keys()) if (!ids.has(id)) this.#attempts.delete(id);
    for (const id of this.#terms.keys()) if (!ids.has(id)) this.#terms.delete(id);
    await Promise.all([...this.#attempts.keys()].map((id) => this.#storeAttempts(id)));
    await this.#followFeed();
    // These writes come last, because they may fail on a full disk. The leases are already renewed.
    await this.#createFixed(endpoints);
    await this.#noteFixed(endpoints);
    await this.#removeUnseen(stored);
  }

  /** Wakes the lanes that have missed a notification, and stores skipped positions. */
  async #followFeed(): Promise<void> {
    if (this.#runners.size === 0) return;
    this.#newest = await this.#ports.store.newestEvents();
    this.#tail.check(this.#newest);
    if (performance.now() - this.#flushedMs < FLUSH_INTERVAL_MS) return;
    this.#flushedMs = performance.now();
    await Promise.all([...this.#runners.values()].map((runner) => runner.flush()));
  }

  /**
   * Stores a record for each configured endpoint that does not have one yet, even while the feed is
   * off. The endpoint therefore gets the first events after the feed was turned on.
   */
  async #createFixed(endpoints: readonly Endpoint[]): Promise<void> {
    const { fixed, store } = this.#ports;
    const ids = new Set(endpoints.map(({ id }) => id));
    const added = fixed.filter(({ id }) => !ids.has(id));
    if (added.length === 0) return;
    const nowMs = this.#ports.clock();
    const from = await store.newestEvents();
    for (const endpoint of added) {
      const times = { createdAtMs: nowMs, enabledAtMs: nowMs };
      const record = { ...times, from, targetHash: targetHashOf(endpoint), replays: [] };
      const text = textOf({ ...endpoint, ...record, version: 0, isFixed: true });
      await store.putWebhook(endpoint.id, text, 0, UNLIMITED);
    }
  }

  /**
   * Periodically records that the configuration contains the fixed endpoints. `#removeUnseen` needs
   * these records. If the configuration gave an endpoint a different URL or secret, earlier
   * failures no longer count. This is checked once per process, because other nodes may still have
   * the old configuration.
   */
  async #noteFixed(endpoints: readonly Endpoint[]): Promise<void> {
    const nowMs = this.#ports.clock();
    for (const endpoint of endpoints.filter(({ isFixed }) => isFixed)) {
      const { id, version, createdAtMs, seenAtMs = createdAtMs } = endpoint;
      const isChanged =
        !this.#checkedTargets.has(id) && endpoint.targetHash !== targetHashOf(endpoint);
      if (isChanged || Math.abs(nowMs - seenAtMs) >= SEEN_INTERVAL_MS) {
        const changes = isChanged ? { targetHash: targetHashOf(endpoint), enabledAtMs: nowMs } : {};
        const text = textOf({ ...endpoint, ...changes, seenAtMs: nowMs });
        const result = await this.#ports.store.putWebhook(id, text, version, UNLIMITED);
        if (result !== "done") continue;
      }
      this.#checkedTargets.add(id);
    }
  }

  /**
   * Removes the records of fixed endpoints that no node has had in its configuration for a day. The
   * delay is needed because, while the configuration is being changed, only some of the nodes have
   * the new configuration. A process removes nothing in its first hour, because if all nodes were
   * stopped for more than a day, one that has the endpoint may start after this node.
   */
  async #removeUnseen(stored: readonly StoredWebhook[]): Promise<void> {
    if (performance.now() < SEEN_INTERVAL_MS) return; // time since the start of the process
    const { fixed, store } = this.#ports;
    const ids = new Set(fixed.map(({ id }) => id));
    for (const record of stored.filter(isFixedRecord)) {
      if (ids.has(record.id) || this.#ports.clock() - seenAtMsOf(record) < UNSEEN_MS) continue;
      await store.removeWebhook(record.id);
    }
  }

  async #renewLeases(endpoints: readonly Endpoint[]): Promise<void> {
    const ids = endpoints.map(({ id }) => id);
    const startedMs = performance.now();
    const leases = await this.#ports.store.acquireWebhookLeases(ids, this.#owner, LEASE_MS);
    await Promise.all(
      endpoints.map(async (endpoint, at) => {
        const lease = leases[at];
        if (lease !== undefined) this.#termOf(endpoint.id).renew(startedMs);
        try {
          await this.#applyLease(endpoint, lease);
        } catch (error) {
          this.#ports.onError(error, "Deliveries to a webhook could not be started");
        }
      }),
    );
  }

  /** Starts, updates or ends the deliveries of an endpoint. */
  async #applyLease(endpoint: Endpoint, lease: Lease | undefined): Promise<void> {
    const { id } = endpoint;
    const runner = this.#runners.get(id);
    if (lease === undefined) {
      if (runner !== undefined) this.#end(id, runner);
      return;
    }
    if (runner !== undefined) {
      if (!mayContinue(runner, endpoint, lease)) this.#end(id, runner);
      else if (runner.endpoint.version !== endpoint.version) await runner.update(endpoint);
      return;
    }
    if (this.#isClosed) return;
    const next = new Runner(endpoint, lease, this.#runnerPorts(id));
    await next.start();
    this.#runners.set(id, next);
    this.#ports.metrics.watch(id, {
      oldestMs: () => this.#runners.get(id)?.oldestOpenMs,
      lag: () => this.#runners.get(id)?.lagBehind(this.#newest) ?? 0,
      parked: () => this.#runners.get(id)?.parked ?? 0,
    });
  }

  #termOf(id: string): LeaseTerm {
    const term = this.#terms.get(id) ?? new LeaseTerm();
    this.#terms.set(id, term);
    return term;
  }

  #runnerPorts(id: string): ConstructorParameters<typeof Runner>[2] {
    const { store, feed, onError, onLost } = this.#ports;
    return {
      ...{ store, onError },
      read: (partition, after, selection) => readFeed(feed, partition, after, selection),
      tail: this.#tail,
      onLost: (events) => onLost(id, events),
      now: neverSetBack(this.#ports.clock),
      formatOf: (name) => this.#formatOf(name),
      deliver: (endpoint, delivery) => this.#deliver(endpoint, delivery),
      disable: async ({ enabledAtMs }, reason) => {
        const disabled = await this.#change(
          id,
          (endpoint) =>
            isActive(endpoint) && endpoint.enabledAtMs === enabledAtMs
              ? { ...endpoint, disabledReason: reason }
              : { refusal: "webhook_not_found" }, // the endpoint was changed meanwhile
        );
        if (!("refusal" in disabled)) this.#ports.onDisabled(id, reason);
      },
      endReplay: async (replay) => {
        const ended = await this.#change(id, (endpoint) => ({
          ...endpoint,
          replays: endpoint.replays.filter((other) => other.id !== replay.id),
        }));
        if ("refusal" in ended && ended.refusal === "overloaded")
          throw new BrokerError("overloaded");
      },
      isLeaseValid: () => this.#termOf(id).isValid,
      onLeaseLost: () => this.#tick(),
    };
  }

  /** Ends the deliveries to an endpoint without waiting for the requests in progress. */
  #end(id: string, runner: Runner): void {
    this.#runners.delete(id);
    const ended = this.#stop(runner).finally(() => {
      this.#ending.delete(id);
      this.#tick();
    });
    this.#ending.set(id, ended);
  }

  async #stop(runner: Runner): Promise<void> {
    try {
      await runner.stop();
      await this.#ports.store.releaseLease(runner.lease, this.#owner);
    } catch (error) {
      this.#ports.onError(error, "The lease of a webhook could not be released");
    }
  }

  #formatOf(name: WebhookFormat): Format {
    const { formats } = this.#ports;
    return formats[name] ?? (name === "cloudevents" ? cloudEventsFormat : standardFormat);
  }

  /** Sends a request on behalf of an API call that waits for the result. */
  async #sendNow(
    endpoint: Endpoint,
    delivery: Omit<Delivery, "partition" | "isReplay">,
  ): OrRefusal<WebhookAttempt> {
    if (this.#sendingCalls >= MAX_SENDING_CALLS) return { refusal: "overloaded" };
    this.#sendingCalls += 1;
    try {
      const timeMs = this.#ports.clock();
      const all: Delivery = { ...delivery, partition: 0, isReplay: false };
      const outcome = await this.#deliver(endpoint, all);
      return this.#attemptOf(all, outcome, timeMs);
    } finally {
      this.#sendingCalls -= 1;
    }
  }

  async #deliver(endpoint: Endpoint, delivery: Delivery): Promise<Outcome> {
    const { id, request, attempt, events, isReplay } = delivery;
    const url = new URL(endpoint.settings.url);
    for (const [name, value] of Object.entries(request.query ?? {}))
      url.searchParams.append(name, value);
    const timeMs = this.#ports.clock();
    const { body } = request;
    const sender = endpoint.isFixed ? this.#senders.fixed : this.#senders.created;
    const outcome = await sender.send({
      url: url.href,
      headers: {
        "content-type": request.contentType,
        "user-agent": `Jindou/${this.#ports.version}`,
        "webhook-attempt": `${attempt}`,
        ...(isReplay && { "webhook-replay": "1" }),
        ...signedHeaders(signingKeys(endpoint, timeMs), { id, nowMs: timeMs, body }),
      },
      body,
    });
    const { status, durationMs } = outcome;
    const outcomeClass = status === 0 ? "error" : `${Math.floor(status / 100)}xx`;
    this.#ports.metrics.attempted(endpoint.id, outcomeClass, durationMs, events);
    this.#record(endpoint.id, this.#attemptOf(delivery, outcome, timeMs));
    return outcome;
  }

  #attemptOf(delivery: Delivery, outcome: Outcome, timeMs: number): WebhookAttempt {
    const { id: webhookId, attempt, events, isReplay } = delivery;
    const { status, error, reply, durationMs } = outcome;
    const { nodeId } = this.#ports;
    return {
      ...{ timeMs, webhookId, attempt, events, isReplay },
      ...{ status, durationMs, error, reply, nodeId },
    };
  }

  #record(id: string, attempt: WebhookAttempt): void {
    const attempts = this.#attempts.get(id) ?? [];
    attempts.push(JSON.stringify(attempt));
    if (attempts.length > KEPT_ATTEMPTS) attempts.shift();
    this.#attempts.set(id, attempts);
  }

  async #storeAttempts(id: string): Promise<void> {
    const attempts = this.#attempts.get(id);
    if (attempts === undefined) return;
    this.#attempts.delete(id);
    await this.#ports.store.addWebhookAttempts(id, attempts, KEPT_ATTEMPTS);
  }
}

/**
 * Returns false if a new runner must deliver. A runner also stops when it disables its endpoint. If
 * the endpoint could not be disabled, it is still active and needs a new runner. An endpoint that
 * was enabled again or given a different URL or secret needs a new runner, because the pause of the
 * earlier runner does not apply.
 */
function mayContinue(runner: Runner, { enabledAtMs }: Endpoint, { token }: Lease): boolean {
  const { isStopping, lease, endpoint } = runner;
  return !isStopping && lease.token === token && endpoint.enabledAtMs === enabledAtMs;
}

function createSecret(): string {
  return `whsec_${randomBytes(SECRET_BYTES).toString("base64")}`;
}

function signingKeys({ secrets }: Endpoint, nowMs: number): readonly Buffer[] {
  return secrets
    .filter(({ untilMs = Infinity }) => nowMs < untilMs)
    .flatMap(({ text }) => signingKeyOf(text) ?? []);
}

/** Milliseconds up to which a backward jump of the clock is not compensated for. */
const ADJUSTED_MS = 1000;

/**
 * Returns a clock that never jumps backward by more than `ADJUSTED_MS`. It uses the monotonic clock
 * to compensate for larger backward jumps of `clock`.
 */
function neverSetBack(clock: () => number): () => number {
  let lastMs = clock();
  let lastSteadyMs = performance.now();
  let offsetMs = 0;
  return () => {
    const steadyMs = performance.now();
    const earliestMs = lastMs + steadyMs - lastSteadyMs - ADJUSTED_MS;
    offsetMs += Math.max(0, earliestMs - clock() - offsetMs);
    lastMs = clock() + offsetMs;
    lastSteadyMs = steadyMs;
    return Math.round(lastMs);
  };
}

/** Returns the properties that are not `undefined`. */
function defined<Value extends object>(
  value: Value,
): { [Name in keyof Value]: Exclude<Value[Name], undefined> } {
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return Object.fromEntries(entries) as { [Name in keyof Value]: Exclude<Value[Name], undefined> };
}
