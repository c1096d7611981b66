// A real identity provider for the tests: oidc-provider, with a simple sign-in page.
//
// It prints its issuer, reads the service's redirect URI from standard input, and ends when standard input is
// closed. It accepts every user: `NAME` is NAME@example.org. Each start creates new keys.

import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [home, port] = process.argv.slice(2);
const library = createRequire(`${home}/`).resolve('oidc-provider');
const { default: Provider } = await import(pathToFileURL(library).href);

const page = (uid) => `<!doctype html><html lang="en"><title>Provider</title><link rel="icon" href="data:,"><h1>Who are you?</h1>
<form method="post" action="/interaction/${uid}"><input name="login" aria-label="Name"><button name="go" value="in">In</button>
<button name="go" value="no" id="no">Rather not</button></form>`;

const account = (id) => ({
  accountId: id,
  claims: () => ({ sub: `sub-${id}`, email: `${id}@example.org`, email_verified: id !== 'unverified' }),
});

function provider(issuer, redirect) {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const jwk = { ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256', kid: `${Date.now()}` };
  return new Provider(issuer, {
    clients: [{ client_id: 'fleetmend', client_secret: 'hush', redirect_uris: [redirect] }],
    jwks: { keys: [jwk] },
    cookies: { keys: ['a key of the tests'] },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: [] },
    features: { devInteractions: { enabled: false } },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_, id) => account(id),
    ttl: { AccessToken: 60, AuthorizationCode: 60, IdToken: 60, Interaction: 600, Session: 600, Grant: 600 },
    // No consent page: the service belongs to the same organization.
    async loadExistingGrant({ oidc }) {
      const { clientId } = oidc.client;
      const grant = new oidc.provider.Grant({ clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope('openid email profile');
      await grant.save();
      return grant;
    },
  });
}

async function answer(asked, request, response) {
  const [, uid] = request.url.match(/^\/interaction\/([\w-]+)$/) ?? [];
  if (!uid) return asked.callback()(request, response);
  if (request.method !== 'POST') return response.setHeader('content-type', 'text/html').end(page(uid));
  let body = '';
  for await (const part of request) body += part;
  const form = new URLSearchParams(body);
  const result = form.get('go') === 'in' ? { login: { accountId: form.get('login') } } : { error: 'access_denied' };
  return asked.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
}

let asked;
const server = createServer((request, response) => {
  answer(asked, request, response).catch((error) => response.writeHead(500).end(`${error}`));
});
server.listen(Number(port), '127.0.0.1', () => {
  // Another host name than the service's, so that a browser treats the two as different sites, as in production.
  const issuer = `http://localhost:${server.address().port}`;
  const lines = createInterface({ input: process.stdin });
  lines.once('line', (redirect) => {
    asked = provider(issuer, redirect);
    console.log('ready');
  });
  lines.on('close', () => process.exit(0));
  console.log(issuer);
});
