// The row of the route table that reads a stream; on the clients' listener it is the only one. State: none beyond its calls'.

import { streamBody } from "./reply-schemas.ts";
import type { ApiRoute } from "./route.ts";
import {
  type AdmissionParts,
  createStreamAdmission,
  STREAM_ACCESS,
} from "./stream-admission.ts";
import {
  type Audience,
  createStreamReader,
  STREAM_HEADERS,
  STREAM_PATH,
} from "./stream-request.ts";
import { streamSchemas } from "./stream-schemas.ts";
import { createStreamCalls, type StreamReadParts } from "./streams.ts";

export interface StreamRouteParts extends AdmissionParts, StreamReadParts {}

export function createStreamRoute(
  parts: StreamRouteParts,
  audience: Audience,
): ApiRoute {
  const read = createStreamReader(audience);
  const admission = createStreamAdmission(parts, audience);
  const calls = createStreamCalls(parts);

  const run: ApiRoute["run"] = (request, guard) => {
    const asked = read(request);
    if ("refused" in asked) return asked.refused;
    const mayStay = () => admission.stillAdmits(request, guard);
    return calls.read(asked.value, mayStay);
  };

  return {
    method: "GET",
    path: STREAM_PATH,
    access: STREAM_ACCESS,
    admit: admission.admit,
    headers: STREAM_HEADERS,
    tag: "streams",
    summary:
      "Tells how a stream stands, or follows it by server-sent events; also for viewers with a token of their own",
    body: undefined,
    query: streamSchemas.stream,
    success: {
      description: "How it stands",
      body: streamBody,
      eventStream:
        "Events start, content, tool and end from the index asked for, live until the end; each id is the index behind the event",
      nothing:
        "Following: it is over, and all of it was before the index asked for",
    },
    errors: ["bad_id", "stream_unknown", "not_in_channel", "rate_limited"],
    run,
  };
}
