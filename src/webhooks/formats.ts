// Formats request bodies: events in the feed's format, or as CloudEvents. The same batch always
// produces the same bytes, so that a repeated request is identical to the first. Pure functions.

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
  /** Event types that are sent to an endpoint for which no types were specified. */
  readonly types: readonly string[];
  /**
   * Returns the group of an event, or `undefined` if the format cannot represent the event. Only
   * events of the same group may share a request.
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

/** `source` attribute of all events [CloudEvents]. Together with the id, it identifies an event. */
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

/** Returns the channel key or uid to which an event belongs, or `undefined` for `feed.gap`. */
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
