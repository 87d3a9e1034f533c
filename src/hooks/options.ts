// Schema of the `hooks` section of the configuration.

import { Type } from "typebox";

const CLOSED = { additionalProperties: false };

const url = (what: string) =>
  Type.String({
    default: "",
    maxLength: 2048,
    description: `URL of the hook, which is called before ${what}. An empty value means that there is no hook. If the URL is set, the secret must be set as well.`,
  });

const secret = Type.String({
  default: "",
  maxLength: 256,
  secret: true,
  description:
    "Secret that signs the requests according to Standard Webhooks: `whsec_` followed by 24 to 64 random bytes in Base64.",
});

const timeoutMs = (value: number) =>
  Type.Integer({
    default: value,
    minimum: 10,
    maximum: 30_000,
    unit: "milliseconds",
    description: "Time limit for the hook's complete response.",
  });

const maxInFlight = Type.Integer({
  default: 256,
  minimum: 1,
  maximum: 4096,
  unit: "requests",
  description:
    "Maximum number of concurrent requests from this node to the hook. One user may have at most an eighth of this number in progress, but always at least one. Further requests wait: at most 32 times this number in total, and at most four times this number for one user. If too many requests wait, a further request is rejected as overloaded.",
});

const onFailure = (what: string) =>
  Type.Enum(["deny", "allow"], {
    default: "deny",
    description: `Decision about ${what} if the hook cannot be reached, if its response is late or not as documented, and while the circuit breaker is open. \`deny\`: it is rejected, and the client may try again. \`allow\`: it is accepted as if there were no hook.`,
  });

const staticHeaders = Type.Array(
  Type.Object(
    {
      name: Type.String({
        minLength: 1,
        maxLength: 128,
        description: "Name of the header.",
      }),
      value: Type.String({
        maxLength: 4096,
        secret: true,
        description: "Value of the header.",
      }),
    },
    CLOSED,
  ),
  {
    default: [],
    description:
      "Headers that are added to each request to the hook, for example a credential for its gateway.",
  },
);

export const hooksOptions = Type.Object(
  {
    connect: Type.Object(
      {
        url: url("a client logs in, refreshes its token or uses a stream over HTTP"),
        secret,
        timeoutMs: timeoutMs(1000),
        maxInFlight,
        onFailure: onFailure("a login, a token refresh or the use of a stream"),
        forwardHeaders: Type.Array(Type.String({ minLength: 1, maxLength: 128 }), {
          default: [],
          description:
            "Names of WebSocket handshake headers that are passed to the hook, for example `cookie`. A browser sends cookies with the requests of any page, so set `client.allowedOrigins` as well.",
        }),
        staticHeaders,
      },
      CLOSED,
    ),
    send: Type.Object(
      {
        url: url("a client's message or command is accepted"),
        secret,
        channels: Type.Array(Type.String({ minLength: 1, maxLength: 131 }), {
          default: ["*"],
          description:
            "Channels whose messages are sent to the hook: `*` for all, or `<type>:<id>`, where `*` may be the last character (`2:support-*`, `1:*`). The id of a personal channel is the receiver's uid.",
        }),
        timeoutMs: timeoutMs(500),
        maxInFlight,
        onFailure: onFailure("a message or command"),
        staticHeaders,
      },
      CLOSED,
    ),
  },
  CLOSED,
);
