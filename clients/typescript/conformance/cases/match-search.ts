import { assistant, picture, text, user, userSignal } from '../support/messages.js';
import { countOf, foundIn, observed, type ConformanceCase } from '../support/case.js';
import type { World } from '../support/world.js';

const VAULTS = ['one', 'two', 'three', 'four', 'five', 'six'];

async function rememberVaults(world: World): Promise<void> {
  for (const vault of VAULTS) {
    await world.remember(`past-${vault}`, [
      user(`far-${vault}`, `Bread far-${vault} is baked at dawn`),
      assistant(`before-${vault}`, `Butter before-${vault} melts slowly`),
      user(`hit-${vault}`, `The password of the vault is hit-${vault}`),
      assistant(`after-${vault}`, `Cheese after-${vault} ripens in caves`),
      user(`end-${vault}`, `Apples end-${vault} fall in autumn`),
    ]);
  }
}

const defaults: ConformanceCase = {
  id: 'C1',
  behaviour:
    'defaults: topK 4, one message before and after, the whole resource, no threshold; `messageRange` as a number or one for each side',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    await rememberVaults(world);
    const count = async (query: string, recall = {}): Promise<string> => {
      const { everything } = await world.recall('here', user('q', query), [], { recall });
      const kinds = ['far', 'before', 'hit', 'after', 'end'].map((kind) =>
        countOf(
          everything,
          VAULTS.map((vault) => `${kind}-${vault}`),
        ),
      );
      return kinds.join('/');
    };
    const seen = [
      await count('What is the password of the vault?'),
      await count('What is the password of the vault?', { messageRange: 0 }),
      await count('What is the password of the vault?', { messageRange: { before: 2, after: 0 } }),
    ].join(' ');
    const unrelated = await world.recall('here', user('q2', 'Zebras gallop over quartz'));
    const right = seen === '0/4/4/4/0 0/0/4/0/0 4/4/4/0/0' && unrelated.blocks === 1;
    return observed(right, 'as documented', `far, before, hit, after, end: ${seen}`);
  },
};

const query: ConformanceCase = {
  id: 'C2',
  behaviour:
    'the query is the last text of the user, signals included: `content` first, else the parts; without text, thread or context nothing is searched',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    await world.remember('past', [user('p1', 'A red boat lies by the lighthouse')]);
    const searched: string[] = [];
    for (const input of [
      user('q1', '', { content: 'a lighthouse', parts: [text('other words')] }),
      user('q2', '', { parts: [text('a red'), text('boat')] }),
      userSignal('q3', 'a boat by night'),
      [user('q4', 'the first'), user('q5', 'the last')],
    ]) {
      searched.push(...(await world.recall('here', input)).searched);
    }
    const nothing = [
      await world.recall('here', assistant('a1', 'said by the model')),
      await world.recall('here', user('q6', '', { parts: [picture()] })),
      await world.recall(null, user('q7', 'no thread')),
      await world.recall('here', user('q8', 'no context'), [], { context: false }),
    ];
    const touched = nothing.filter((one) => one.searched.length > 0 || one.everything !== '');
    const right =
      searched.join('|') === 'a lighthouse|a red boat|a boat by night|the last' &&
      touched.length === 0;
    return observed(
      right,
      'all four ways; nothing without',
      `${searched.join(' · ')}; ${touched.length} of 4 others searched`,
    );
  },
};

const scope: ConformanceCase = {
  id: 'C3',
  behaviour: 'scope: the resource, or the thread alone; never another resource',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    const codes = ['code-red', 'code-blue', 'code-foreign'];
    await world.remember('first', [user('m1', 'The vault opens with code-red')]);
    await world.remember('second', [user('m2', 'The vault opens with code-blue')]);
    await world.remember('foreign', [user('m3', 'The vault opens with code-foreign')], {
      resourceId: `${world.user}-neighbour`,
    });
    const ask = user('q', 'How does the vault open?');
    const wide = await world.recall('here', ask);
    const narrow = await world.recall('first', ask, [], { recall: { scope: 'thread' } });
    const none = await world.recall('here', ask, [], { recall: { scope: 'thread' } });
    const seen = [wide, narrow, none].map((one) => foundIn(one.everything, codes));
    return observed(
      seen.join(' | ') === 'code-red, code-blue | code-red | nothing',
      'both threads of the resource; the thread alone',
      `resource: ${seen[0] ?? ''}; thread: ${seen[1] ?? ''}; another thread: ${seen[2] ?? ''}`,
    );
  },
};

function cosine(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, at) => sum + value * (b[at] ?? 0), 0);
}

const threshold: ConformanceCase = {
  id: 'C4',
  behaviour: 'the threshold is a cosine, inclusive',
  mastra: 'right',
  async run(open) {
    await using world = await open();
    const ask = 'Which paint was used for the harbour gate?';
    const texts = [
      'Green paint was used for the harbour gate',
      'Paint for the harbour wall is white',
      'Sheep eat grass',
    ];
    const ids = ['near', 'middle', 'away'];
    for (const [at, id] of ids.entries()) {
      await world.remember(id, [user(id, texts[at] ?? '')]);
    }
    const scores = await world.scores(ask);
    const [queryVector, ...vectors] = await world.vectorsOf([ask, ...texts]);
    const off = ids.map((id, at) =>
      Math.abs(cosine(queryVector ?? [], vectors[at] ?? []) - (scores.get(id) ?? 9)),
    );
    const middle = scores.get('middle') ?? 9;
    const kept = async (least: number): Promise<string> => {
      const { everything } = await world.recall('here', user('q', ask), [], {
        recall: { threshold: least, messageRange: 0 },
      });
      return foundIn(everything, ['Green paint', 'white', 'Sheep']);
    };
    const at = await kept(middle);
    const above = await kept(middle + 1e-6);
    return observed(
      Math.max(...off) < 1e-3 && at === 'Green paint, white' && above === 'Green paint',
      'two at the score of the second, one a millionth above',
      `at the score of the second: ${at}; a millionth above: ${above}`,
    );
  },
};

const window: ConformanceCase = {
  id: 'C5',
  behaviour:
    'the window lies in the hit’s own thread, each message once, in order; other threads only with scope resource',
  mastra: 'right',
  async run(open) {
    await using world = await open({
      recall: { messageRange: { before: 1, after: 2 }, topK: 2, scope: 'thread' },
    });
    const messages = [
      user('m1', 'Bread rises'),
      user('m2', 'Rain falls'),
      user('hit1', 'The lighthouse lamp is amber'),
      user('m3', 'Wool is warm'),
      assistant('hit2', 'An amber lighthouse lamp, noted'),
      user('m4', 'Glass breaks'),
      user('m5', 'Ink dries'),
      user('m6', 'Apples fall'),
    ];
    // In another thread at the same time.
    await world.remember('elsewhere', [user('e1', 'The lighthouse lamp has an amber glass')]);
    await world.remember('past', messages);
    const ask = user('q', 'Which amber lamp has the lighthouse?', {
      createdAt: '2025-01-01T00:00:00Z',
    });
    const narrow = await world.recall('past', ask);
    const wide = await world.recall('past', ask, [], { recall: { topK: 3, messageRange: 0 } });
    const others = foundIn(wide.block, ['amber glass', 'lamp is amber', 'noted']);
    const seen = `${narrow.ids.join(' ')}${narrow.block}; of other threads ${others}`;
    return observed(
      seen === 'm2 hit1 m3 hit2 m4 m5; of other threads amber glass',
      'two windows as one, in order',
      seen,
    );
  },
};

/** What is searched, and what is found: C1 to C5. */
export const matchSearch: readonly ConformanceCase[] = [defaults, query, scope, threshold, window];
