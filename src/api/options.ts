// The options of the control plane (sections `api`, `auth`, `admin`, `managers`). Schemas only:
// `config/` and the reference page read them. `secret` values are never printed.

import { Type } from "typebox";
import { PERMISSIONS } from "../broker/manager-accounts.ts";

const CLOSED = { additionalProperties: false };

/** Section `api`: the listener of the HTTP control plane and the limits of each call. */
export const apiOptions = Type.Object(
  {
    listen: Type.String({
      default: "127.0.0.1:5001",
      minLength: 1,
      unit: "host:port",
      description:
        "Address of the HTTP control plane. Beyond loopback every call needs a credential, and the process starts only when `api.token`, `admin.password` or `managers` is set. Port 0 picks a free one.",
    }),
    token: Type.String({
      default: "",
      maxLength: 4096,
      secret: true,
      description:
        "Static API token that backends send in the header `token`; it may do everything. Setting it makes every call need a credential. Empty: none.",
    }),
    dialect: Type.Enum(["jindou", "wukongim"], {
      default: "jindou",
      description:
        "Shape of replies and the meaning of a few calls. `wukongim`: as backends written for WuKongIM expect them (docs/http.md, section The wukongim dialect).",
    }),
    tls: Type.Object(
      {
        certFile: Type.String({
          default: "",
          unit: "path",
          description: "Certificate chain in PEM. Empty: no TLS on this listener.",
        }),
        keyFile: Type.String({
          default: "",
          unit: "path",
          description: "Private key of the certificate in PEM.",
        }),
        caFile: Type.String({
          default: "",
          unit: "path",
          description:
            "Certificate authorities in PEM that a client certificate, where one is sent, must come from. It is no access control: clients without a certificate still get in. Empty: the system's own.",
        }),
        passphrase: Type.String({
          default: "",
          secret: true,
          description: "Passphrase of an encrypted private key.",
        }),
      },
      CLOSED,
    ),
    maxBodyBytes: Type.Integer({
      default: 1_048_576,
      minimum: 1024,
      maximum: 67_108_864,
      unit: "bytes",
      description: "A call with a larger body is answered with 413.",
    }),
    maxPendingBodyBytes: Type.Integer({
      default: 67_108_864,
      minimum: 1_048_576,
      maximum: 17_179_869_184,
      unit: "bytes",
      description:
        "Memory for bodies of which only a part has come, all calls together; a call for whose body there is no room is answered with 503.",
    }),
    maxSubscribersPerCall: Type.Integer({
      default: 10_000,
      minimum: 1,
      maximum: 1_000_000,
      unit: "uids",
      description: "Most subscribers that one call may name.",
    }),
    maxFollowers: Type.Integer({
      default: 10_000,
      minimum: 1,
      maximum: 1_000_000,
      unit: "readers",
      description:
        "Most readers that follow streams over HTTP at once; further ones are answered with 503. Raise it for a page with more viewers of this node.",
    }),
  },
  CLOSED,
);

/** Section `auth`: credentials and limits of guessing them. */
export const authOptions = Type.Object(
  {
    api: Type.Enum(["auto", "required"], {
      default: "auto",
      description:
        "`auto`: control-plane calls need a credential when `api.listen` reaches beyond loopback or `api.token` is set; `required`: always.",
    }),
    clients: Type.Enum(["token", "none"], {
      default: "token",
      description:
        "`token`: a client connects with a token registered through /user/token; `none`: any client connects as the user it names.",
    }),
    tokenTtlS: Type.Integer({
      default: 86_400,
      minimum: 60,
      maximum: 31_536_000,
      unit: "seconds",
      description: "Lifetime of an access token from /manager/login.",
    }),
    loginAttempts: Type.Integer({
      default: 5,
      minimum: 1,
      maximum: 1000,
      unit: "failed logins",
      description:
        "Failed logins from one network (an IPv4 address, an IPv6 /64) after which further ones from there are answered with 429 until the window ends; and of one username, after which attempts at it wait a second.",
    }),
    loginWindowS: Type.Integer({
      default: 60,
      minimum: 1,
      maximum: 86_400,
      unit: "seconds",
      description: "The window in which failed logins are counted.",
    }),
    tokenAttempts: Type.Integer({
      default: 20,
      minimum: 1,
      maximum: 1_000_000,
      unit: "failed attempts",
      description:
        "Wrong client tokens from one network (an IPv4 address, an IPv6 /64), on sockets and at /stream, after which tokens from there are checked one after the other, two a second; more where many clients with ended tokens share an address.",
    }),
    tokenWindowS: Type.Integer({
      default: 60,
      minimum: 1,
      maximum: 86_400,
      unit: "seconds",
      description: "The window in which wrong client tokens are counted.",
    }),
  },
  CLOSED,
);

/** Section `admin`: the account that exists when no manager is configured. */
export const adminOptions = Type.Object(
  {
    password: Type.String({
      default: "",
      maxLength: 1024,
      secret: true,
      description:
        "Password of the manager `admin`. Empty: a random one is made on first start and printed once. Not used when `managers` is set.",
    }),
  },
  CLOSED,
);

/** Section `managers`: the accounts of the control plane. */
export const managersOptions = Type.Array(
  Type.Object(
    {
      username: Type.String({
        minLength: 1,
        maxLength: 128,
        description: "Name to log in with.",
      }),
      passwordHash: Type.String({
        default: "",
        secret: true,
        description:
          "Password as printed by `jindou hash-password`: `scrypt$N$r$p$salt$hash`. Either this or `password`.",
      }),
      password: Type.String({
        default: "",
        maxLength: 1024,
        secret: true,
        description:
          "Password in plain text, for values that come from the environment. Either this or `passwordHash`.",
      }),
      role: Type.Enum(["admin", "operator", "viewer"], {
        default: "viewer",
        description:
          "What the account may do: `admin` everything; `operator` writes users, channels, messages and events and reads the system's state; `viewer` reads the system's state.",
      }),
      permissions: Type.Array(Type.Enum([...PERMISSIONS]), {
        default: [],
        description: "Permissions in place of those of the role. Empty: the role's.",
      }),
    },
    CLOSED,
  ),
  {
    default: [],
    description: "Accounts that may log in at /manager/login. Empty: one account, `admin`.",
  },
);
