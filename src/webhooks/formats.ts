// Formats the bodies of requests: events in the form of the feed, or as CloudEvents. The same
// events always result in the same bytes, so that a repeated request equals the first one. Pure
// functions.

/** An event as `GET /events` returns it. */
export interface WebhookEvent {
  readonly id: string;
  readonly type: string;
  readonly timestamp: string;
  readonly data: Readonly<Record<string, unknown>>;
}

/** An event and its JSON. The JSON is built once, for the size and for the body of a request. */
export interface EncodedEvent {
  readonly event: WebhookEvent;
  readonly json: string;
}

export function encodeEvent(event: WebhookEvent): EncodedEvent {
  return { event, json: JSON.stringify(event) };
}

/** A request that delivers events, without its signature. */
export interface FormattedRequest {
  readonly contentType: string;
  readonly body: string;
  /** Parameters to add to the query string of the URL. */
  readonly query?: Readonly<Record<string, string>>;
}

interface BatchTime {
  /** True if each request to the endpoint contains a single event. */
  readonly isSingle: boolean;
  /** Time at which the batch was formed (RFC 3339). */
  readonly timestamp: string;
}

export interface Format {
  /** Event types that are sent to an endpoint whose settings list no types. */
  readonly types: readonly string[];
  /**
   * Returns the group of an event. Only events of one group may share a request. `undefined` if the
   * format cannot represent the event.
   */
  groupOf(event: WebhookEvent): string | undefined;
  format(events: readonly EncodedEvent[], time: BatchTime): FormattedRequest;
}

const JSON_TYPE = "application/json";

export const standardFormat: Format = {
  types: ["*"],
  groupOf: () => "",
  format(events, { isSingle, timestamp }) {
    const [first] = events;
    if (isSingle && first !== undefined) return { contentType: JSON_TYPE, body: first.json };
    const list = events.map(({ json }) => json).join(",");
    const body = `{"type":"batch","timestamp":"${timestamp}","data":{"events":[${list}]}}`;
    return { contentType: JSON_TYPE, body };
  },
};

/** Attribute `source` of all events [CloudEvents]. Together with the id, it identifies an event. */
const SOURCE = "/jindou";

export const cloudEventsFormat: Format = {
  types: ["*"],
  groupOf: () => "",
  format(events, { isSingle }) {
    const cloudEvents = events.map(({ event }) => cloudEventOf(event));
    return isSingle
      ? { contentType: "application/cloudevents+json", body: JSON.stringify(cloudEvents[0]) }
      : { contentType: "application/cloudevents-batch+json", body: JSON.stringify(cloudEvents) };
  },
};

/**
 * Returns the key of the channel, or the id of the user, to which an event belongs. `undefined` for
 * `feed.gap`.
 */
export function subjectOf({ data }: WebhookEvent): string | undefined {
  const subject = data.channel_key ?? data.uid;
  return typeof subject === "string" ? subject : undefined;
}

function cloudEventOf(event: WebhookEvent) {
  const { id, type, timestamp: time, data } = event;
  const subject = subjectOf(event);
  return {
    ...{ specversion: "1.0", id, source: SOURCE, type, time },
    ...(subject === undefined ? {} : { subject, partitionkey: subject }),
    ...{ datacontenttype: JSON_TYPE, data },
  };
}
